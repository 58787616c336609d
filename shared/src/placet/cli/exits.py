"""Decides what a command's exit code says, and which next step an error is told with."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from placet.errors import PlacetError

OK = 0
REFUSED = 1
"""Refused, or the run did not succeed."""
USAGE = 2
"""The command or its input is wrong; nothing was asked."""
WAITING = 3
"""`--wait`: the run waits for a person."""
UNKNOWN = 4
"""It may or may not have happened: repeat the same command."""
UNREACHABLE = 5
"""No gateway answers; nothing was asked."""
DEFECT = 70
"""Placet itself is wrong."""
INTERRUPTED = 130

TABLE = (
    "Exit codes: 0 done, 1 refused or failed, 2 bad usage or input, 3 waiting for a person (--wait), "
    "4 outcome unknown (repeat the same command), 5 no gateway answers, 70 a defect of Placet, 130 interrupted."
)

_NEXT_STEPS = {
    "UNAUTHENTICATED": "run this where `placet dev` runs, name its data directory by --data, or set PLACET_TOKEN",
    "HOST_NOT_ALLOWED": "set PLACET_URL to an address of this machine, such as http://127.0.0.1:7300",
    "APPROVAL_STALE_DECISION": "look at what is asked now: placet show REQUEST",
    "APPROVER_NOT_ALLOWED": "somebody else has to decide (in development: --as PERSON)",
    "APPROVAL_CONFLICT": "see what was decided: placet show REQUEST",
    "APPROVAL_NOT_FOUND": "see what waits: placet inbox (or placet inbox --all)",
    "RUN_NOT_FOUND": "see which runs there are: placet run list",
    "RUN_EXISTS": "choose another --id, or leave it out",
    "RUN_TERMINAL": "start another one: placet run start",
    "PLAN_CHANGED": "look at the plan as it is, then propose the change of that one: placet run show RUN",
    "PLAN_BUSY": "see what is decided first: placet run show RUN",
    "PATCH_EXISTS": "choose another --id, or leave it out",
    "TURN_BUSY": "see what it is at: placet run show RUN; stop it: placet run interrupt RUN",
    "TURN_MISMATCH": "look at the run, then say it again: placet run show RUN",
    "INSTRUCTION_EXISTS": "choose another --id, or leave it out",
    "SIGNATURE_INVALID": "have the key registered with the approval service: placet keys show FILE",
    "SIGNATURE_MISMATCH": "name where it shall count: --environment and --tenant",
    "SIGNATURE_EXPIRED": "repeat the same command; if that does not help, look at this machine's clock",
    "BROKER_UNAVAILABLE": "repeat the same command once the broker can be reached: nothing was sent",
    "OUTCOME_UNKNOWN": "repeat the same command: it asks again under the same id and cannot count twice",
    "APPROVAL_BUSY": "repeat the same command",
    "STORE_UNAVAILABLE": "repeat the same command in a moment",
}


def code_of(error: PlacetError) -> int:
    """The exit code of an error."""
    from placet.errors import Code, ContractError, RetryableError

    if error.code is Code.GATEWAY_UNREACHABLE:
        return UNREACHABLE
    if error.code is Code.STORE_IN_USE:
        return REFUSED
    if isinstance(error, RetryableError):
        return UNKNOWN
    return USAGE if isinstance(error, ContractError) else REFUSED


def next_step(error: PlacetError) -> str | None:
    """What to do about an error, where there is something."""
    return _NEXT_STEPS.get(error.code.value)
