"""Decides which stored states are not parsed again: those whose bytes this process has parsed or written before.

Nothing is believed by it. A load still brings the bytes and the version; only that equal bytes mean an equal state is
relied on, so that what another process has written meanwhile is read like anything else.
"""

from __future__ import annotations

from placet.compatibility import read_state
from placet.errors import Code, TerminalError
from placet.ids import Address
from placet.machine import State

STATES_MAX = 256
"""Those of what is in flight. States that nobody asks for again only make the memory in use larger, and slower."""


class OpenedStates:
    """The last states that were parsed or written, with the bytes they are kept as."""

    def __init__(self, states_max: int = STATES_MAX) -> None:
        self._states_max = states_max
        self._kept: dict[Address, tuple[bytes, State, bool]] = {}
        """The oldest first."""

    def read(self, kind: type[State], address: Address, body: bytes) -> State:
        """The state that `body` is. Raises PlacetError(CHECKPOINT_*), as compatibility.read_state does."""
        kept = self._kept.get(address)
        if kept is not None and kept[0] == body and type(kept[1]) is kind:
            return kept[1]
        found = read_state(kind, body)
        if found.state.run_id != address.run_id:
            raise TerminalError(Code.CHECKPOINT_CORRUPT, f"it is a state of the run {found.state.run_id!r}")
        self._keep(address, body, found.state, upgraded=found.upgraded)
        return found.state

    def was_upgraded(self, address: Address) -> bool:
        """Whether the state that was read last is not what its bytes are: an older program wrote them."""
        kept = self._kept.get(address)
        return kept is not None and kept[2]

    def keep(self, address: Address, body: bytes, state: State) -> None:
        """`body` is what `state` was written as."""
        self._keep(address, body, state, upgraded=False)

    def _keep(self, address: Address, body: bytes, state: State, *, upgraded: bool) -> None:
        self._kept.pop(address, None)
        self._kept[address] = (body, state, upgraded)
        if len(self._kept) > self._states_max:
            del self._kept[next(iter(self._kept))]
