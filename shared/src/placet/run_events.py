"""Decides in which sentence a person is told what has happened to a run; the exact event is one `--json` away.

Nothing is escaped here: whoever shows a sentence does that, for names and reasons in it are somebody's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from placet.views import RunEvent

Detail = Mapping[str, Any]


def told_of(event: RunEvent) -> str:
    """One sentence without a full stop. A kind of event that this version does not know is told by its name."""
    known = _SENTENCES.get(event.kind)
    if known is None:
        return f"{event.kind} {event.subject}".rstrip()
    return known(event.subject, _Said(event.detail))


class _Said(dict[str, Any]):
    """Details that may be missing: an older program left them out."""

    def __missing__(self, key: str) -> str:
        return "?"


def _because(detail: Detail) -> str:
    why = detail.get("why") or detail.get("code")
    return f": {why}" if why else ""


def _asked(subject: str, detail: Detail) -> str:
    about = {
        "plan": "the plan",
        "task_round": "the next round",
        "task_dispatch": "a task",
        "tool_call": "a call",
        "question": "an answer to a question",
        "plan_patch": "a change of the plan",
    }.get(str(detail.get("scope")), str(detail.get("scope")))
    return f"waits for a person, about {about}: placet show {subject}"


def _proposed(subject: str, detail: Detail) -> str:
    told = f"{detail['tool']} is to be called for task {detail['task']} ({subject})"
    return f"{told}: waits for a person: placet show {detail['request_id']}" if detail.get("request_id") else told


def _decided(subject: str, detail: Detail) -> str:
    by = f" by {detail['decided_by']}" if detail.get("decided_by") else ""
    return f"{subject} is {detail['outcome']}{by}"


def _continued(subject: str, detail: Detail) -> str:
    return f"{detail['by']} gave the run a further instruction ({subject}), taken in {detail['turn']}"


_SENTENCES: Mapping[str, Callable[[str, _Said], str]] = {
    "run.submitted": lambda subject, d: f"{d['initiator']} started {subject} for the team {d['team']} ({d['mode']})",
    "run.forked": lambda subject, d: f"{d['initiator']} forked {subject} from {d['forked_from']} at {d['version']}",
    "run.continued": _continued,
    "run.ending": lambda subject, d: f"the run ends as {subject}{_because(d)}, when what is in doubt is settled",
    "run.ended": lambda subject, d: f"the run is {subject.replace('_', ' ')}{_because(d)}",
    "plan.proposed": lambda _, d: f"the planner proposed a plan of {d['tasks']} task(s)",
    "task.started": lambda subject, d: f"task {subject} began" + (f", by {d['assignee']}" if "assignee" in d else ""),
    "task.succeeded": lambda subject, _: f"task {subject} succeeded",
    "task.failed": lambda subject, d: f"task {subject} failed{_because(d)}",
    "task.skipped": lambda subject, d: f"task {subject} was skipped{_because(d)}",
    "turn.interrupted": lambda subject, d: f"{d['by']} interrupted {subject}{_because(d)}",
    "call.refused": lambda _, d: f"a call of {d['tool']} was refused{_because(d)}",
    "operation.proposed": _proposed,
    "operation.done": lambda subject, d: f"{subject} {d['status']}{_because(d)}",
    "operation.doubtful": lambda subject, d: (
        f"nobody knows whether {subject} happened, a person is asked: placet show {d['request_id']}"
    ),
    "approval.requested": _asked,
    "approval.decided": _decided,
    "approval.expiring": lambda subject, _: f"{subject} will expire soon: placet show {subject}",
}
