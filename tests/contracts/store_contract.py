"""Decides what an adapter inherits to prove that it is a store."""

from __future__ import annotations

from tests.contracts.checkpoint_contract import CheckpointContract
from tests.contracts.continuing_contract import ContinuingContract
from tests.contracts.deciding_contract import DecidingContract
from tests.contracts.fact_contract import FactContract
from tests.contracts.gating_contract import GatingContract
from tests.contracts.lasting_contract import LastingContract
from tests.contracts.outbox_contract import OutboxContract
from tests.contracts.outside_contract import OutsideContract
from tests.contracts.patching_contract import PatchingContract
from tests.contracts.reader_contract import ReaderContract
from tests.contracts.restoring_contract import RestoringContract
from tests.contracts.unit_contract import UnitContract
from tests.contracts.waking_contract import WakingContract


class StoreContract(
    UnitContract,
    FactContract,
    OutboxContract,
    ReaderContract,
    CheckpointContract,
    RestoringContract,
    DecidingContract,
    LastingContract,
    ContinuingContract,
    WakingContract,
    GatingContract,
    PatchingContract,
    OutsideContract,
):
    """Every promise of runtime.ports.Store, Reader and Archive, and of the checkpoints on them."""
