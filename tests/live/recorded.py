"""Decides what the fault tests' own application does: one effect of each class, written down where no kill erases it.

An agent looks, tags (a person is asked), notes and announces. The ledger says what really happened in the world, so
that a test can compare it with what the system believes, and a person can answer "did it happen?" truthfully.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from uuid import uuid4

from placet import App, Executed, NotExecuted, Suspend, ToolContext, scripted
from placet.calls import ToolResult, ToolResults
from placet.gates import CallSubject
from placet.script import Conversation, Step, call, plan

FOLDER = "RECORDED_FOLDER"
"""Names the ledger's folder, to the tools and to the test."""
MODEL_TIMEOUT_S = 1.0
TOOL_TIMEOUT_S = 1.0
ONCE = ("tag", "note", "announce")
"""Tools with an effect, which a run that succeeds has had exactly once each."""


@dataclass(frozen=True)
class Effect:
    """One thing that happened in the world."""

    tool: str
    operation_id: str
    key: str
    attempt: int


class Ledger:
    """What happened, by run: a file for each effect, there whole or not at all, without locks that a kill leaves."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def happen(self, tool: str, context: ToolContext, *, once_a_key: bool = False) -> None:
        """The effect. `once_a_key`: as a world does that dedupes, nothing where the key has been seen."""
        effect = Effect(tool, context.operation_id, context.idempotency_key, context.attempt)
        folder = self._folder / context.run_id
        folder.mkdir(exist_ok=True)
        name = uuid4().hex
        draft = folder / f".{name}"
        with draft.open("w") as file:
            file.write(json.dumps(asdict(effect)))
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(draft, folder / f"{tool}.{effect.key if once_a_key else name}")
        draft.unlink()

    def of(self, run_id: str) -> Sequence[Effect]:
        """All effects of a run, in order."""
        found = sorted((self._folder / run_id).glob("[!.]*"), key=lambda path: path.stat().st_mtime_ns)
        return [Effect(**json.loads(path.read_text())) for path in found]

    def has(self, run_id: str, operation_id: str) -> bool:
        """Whether that operation had its effect."""
        return any(effect.operation_id == operation_id for effect in self.of(run_id))


def ledger() -> Ledger:
    """The ledger of this process's environment."""
    return Ledger(Path(os.environ[FOLDER]))


app = App("recorded", version="1")


@app.tool(effect="read_only", retry=3, timeout_s=TOOL_TIMEOUT_S)
def look(ctx: ToolContext) -> str:
    """Look at the world."""
    return f"{len(ledger().of(ctx.run_id))} things have happened"


@app.tool(effect="reconcilable", consequential=True, timeout_s=TOOL_TIMEOUT_S, quiescence_s=0.1)
def tag(ctx: ToolContext, name: str) -> str:
    """Tag something. Twice would be seen."""
    ledger().happen("tag", ctx)
    return name


@tag.reconcile
def is_tagged(ctx: ToolContext, name: str) -> Executed | NotExecuted:
    """Whether it was tagged by this operation."""
    return Executed(name) if ledger().has(ctx.run_id, ctx.operation_id) else NotExecuted("there is no such tag")


@app.tool(effect="idempotent", retry=3, timeout_s=TOOL_TIMEOUT_S)
def note(ctx: ToolContext, text: str) -> str:
    """Write something down, once a key."""
    ledger().happen("note", ctx, once_a_key=True)
    return text


@app.tool(effect="non_retriable", timeout_s=TOOL_TIMEOUT_S)
def announce(ctx: ToolContext, text: str) -> str:
    """Tell the world. Nobody can find out later whether it heard."""
    ledger().happen("announce", ctx)
    return text


@app.gate("tool_call", tools=[tag])
def a_tag_needs_a_person(call: CallSubject) -> Suspend:
    """It cannot be taken back."""
    return Suspend(f"{call.input['name']} would be tagged.")


def until_announced(conversation: Conversation) -> Step:
    """Announce again, as a new operation, where a person said that it did not happen."""
    results = [result for said in conversation if isinstance(said, ToolResults) for result in said.results]
    return "Done." if _is_last_ok(results) else call("announce", text="it is out")


def _is_last_ok(results: Sequence[ToolResult]) -> bool:
    return bool(results) and results[-1].tool == "announce" and results[-1].ok


model = scripted(
    [call("look"), call("tag", name="v1")],
    [call("note", text="tagged"), call("announce", text="it is out")],
    *[until_announced] * 4,
    planning=[plan([{"id": "release", "title": "Tag, note, announce", "assignee": "worker"}])],
    answering=["All done."],
)
worker = app.agent(
    "worker",
    model=model,
    instructions="You release.",
    tools=[look, tag, note, announce],
    timeout_s=MODEL_TIMEOUT_S,
)
app.team("release", agents=[worker])
