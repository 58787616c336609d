"""The release example works on a real repository: its tools are exact, its model uses what the tools say."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from examples.release import app
from examples.release.model import next_version, notes_of
from placet import calls
from placet.activities import ProbeTool, RunTool
from placet.calls import AssistantReply, ChatMessage, ModelReply, ToolOutcome, ToolResult, ToolResults, UserText
from placet.canonical import canonical_text
from placet.errors import ErrorClass, Failure
from placet.gates import Boundary, CallSubject
from placet.plans import PlannedTask, check_plan
from placet.runtime.loading import load_app
from placet.runtime.tools import ToolRunner
from placet.script import Script

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="the example needs git")

IDENTITY = {
    f"GIT_{who}_{part}": value
    for who in ("AUTHOR", "COMMITTER")
    for part, value in (("NAME", "test"), ("EMAIL", "test@localhost"))
}


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments],
        env={**os.environ, **IDENTITY, "GIT_CONFIG_GLOBAL": os.devnull},
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()


def commit(folder: Path, subject: str) -> str:
    git(folder, "commit", "--allow-empty", "--quiet", f"--message={subject}")
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "--quiet")
    monkeypatch.setenv("RELEASE_REPOSITORY", str(folder))
    return folder


def in_time() -> float:
    return 1.0


async def ran(tool: str, operation_id: str = "op_1", **tool_input: Any) -> ToolOutcome:
    checked = app.validate_input(tool, tool_input)
    assert not isinstance(checked, Failure), checked
    spec = app.tool_spec(tool)
    assert spec is not None
    return await ToolRunner(app).run(
        RunTool(
            tenant="t",
            run_id="r",
            operation_id=operation_id,
            attempt=1,
            tool=tool,
            agent="releaser",
            input_text=canonical_text(checked),
            idempotency_key=operation_id,
            timeout_ms=spec.timeout_ms,
        ),
        in_time,
    )


async def probed(operation_id: str = "op_1", **tool_input: Any) -> ToolOutcome:
    return await ToolRunner(app).probe(
        ProbeTool(
            tenant="t",
            run_id="r",
            operation_id=operation_id,
            attempt=1,
            probe=1,
            tool="create_tag",
            agent="releaser",
            input_text=canonical_text(tool_input),
            idempotency_key=operation_id,
            seal=False,
            timeout_ms=20_000,
        ),
        in_time,
    )


def result_of(outcome: ToolOutcome) -> Any:
    assert isinstance(outcome, calls.Executed), outcome
    assert outcome.failure is None
    return json.loads(outcome.result_text)


def message_of(outcome: ToolOutcome) -> str:
    assert outcome.failure is not None
    return outcome.failure.message


# ── the log ────────────────────────────────────────────────────────────────────────────


async def test_the_log_holds_what_came_after_the_last_version(repository: Path) -> None:
    commit(repository, "start")
    git(repository, "tag", "v1.2.0")
    git(repository, "tag", "v1.10.0")
    git(repository, "tag", "v2.0.0-rc1")
    git(repository, "tag", "other")
    first, second = commit(repository, "fix: a leak"), commit(repository, "feat: é, and <b>")
    log = result_of(await ran("read_log"))
    assert log == {
        "last_tag": "v1.10.0",
        "head": second,
        "commits": [{"commit": second, "subject": "feat: é, and <b>"}, {"commit": first, "subject": "fix: a leak"}],
    }


async def test_a_repository_without_a_version_is_read_from_its_start(repository: Path) -> None:
    head = commit(repository, "start")
    assert result_of(await ran("read_log")) == {
        "last_tag": None,
        "head": head,
        "commits": [{"commit": head, "subject": "start"}],
    }


async def test_an_empty_or_missing_repository_is_told_as_such(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "git refused" in message_of(await ran("read_log"))
    monkeypatch.setenv("RELEASE_REPOSITORY", str(tmp_path / "nowhere"))
    assert "git refused: cannot change to" in message_of(await ran("read_log"))
    monkeypatch.delenv("RELEASE_REPOSITORY")
    outcome = await ran("create_tag", name="v1.0.0", commit="0" * 40)
    assert isinstance(outcome, calls.NotExecuted)
    assert message_of(outcome) == "set RELEASE_REPOSITORY to the folder of a git repository"


# ── the tag ────────────────────────────────────────────────────────────────────────────


async def test_a_tag_is_created_where_it_was_approved(repository: Path) -> None:
    wanted = commit(repository, "start")
    commit(repository, "later")
    assert result_of(await ran("create_tag", name="v1.0.0", commit=wanted)) == {"tag": "v1.0.0", "commit": wanted}
    assert git(repository, "rev-parse", "v1.0.0^{commit}") == wanted
    assert "op_1" in git(repository, "for-each-ref", "--format=%(contents)", "refs/tags/v1.0.0")


async def test_the_same_operation_again_finds_its_own_tag_and_another_is_refused(repository: Path) -> None:
    head = commit(repository, "start")
    first = await ran("create_tag", name="v1.0.0", commit=head)
    made = git(repository, "rev-parse", "v1.0.0")
    assert await ran("create_tag", name="v1.0.0", commit=head) == first
    other = await ran("create_tag", "op_2", name="v1.0.0", commit=head)
    assert isinstance(other, calls.NotExecuted)
    assert "exists already" in message_of(other)
    assert git(repository, "rev-parse", "v1.0.0") == made


async def test_a_commit_that_does_not_exist_is_refused_and_nothing_is_tagged(repository: Path) -> None:
    commit(repository, "start")
    assert isinstance(await ran("create_tag", name="v1.0.0", commit="0" * 40), calls.NotExecuted)
    assert git(repository, "tag", "--list") == ""


async def test_the_probe_tells_what_became_of_the_tag(repository: Path) -> None:
    head = commit(repository, "start")
    absent = await probed(name="v1.0.0", commit=head)
    assert isinstance(absent, calls.NotExecuted)
    assert absent.failure is not None
    assert absent.failure.error_class is ErrorClass.TRANSIENT
    done = await ran("create_tag", name="v1.0.0", commit=head)
    assert await probed(name="v1.0.0", commit=head) == done
    foreign = await probed("op_2", name="v1.0.0", commit=head)
    assert isinstance(foreign, calls.NotExecuted)
    assert foreign.failure is not None
    assert foreign.failure.error_class is ErrorClass.PERMANENT
    assert isinstance(await probed(name="v1.0.0", commit="1" * 40), calls.Unsure)


async def test_a_probe_that_cannot_ask_git_knows_nothing(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELEASE_REPOSITORY", str(repository / "nowhere"))
    assert isinstance(await probed(name="v1.0.0", commit="0" * 40), calls.Unsure)


@pytest.mark.parametrize(
    "tool_input",
    [
        {"name": "v1.0.0", "commit": "HEAD"},
        {"name": "--delete", "commit": "0" * 40},
        {"name": "v1.0.0\n", "commit": "0" * 40},
        {"name": "v1.0", "commit": "0" * 40},
        {"name": "v1.0.0", "commit": "0" * 40, "force": True},
    ],
)
def test_input_that_git_could_read_otherwise_is_refused_before_anybody_is_asked(tool_input: dict[str, Any]) -> None:
    assert isinstance(app.validate_input("create_tag", tool_input), Failure)


# ── the notes ──────────────────────────────────────────────────────────────────────────


async def test_notes_are_published_once_for_an_operation_and_never_replaced(repository: Path) -> None:
    published = result_of(await ran("publish_notes", version="v1.0.0", notes="# v1.0.0\n\nFirst."))
    path = repository / published["path"]
    text = path.read_text()
    assert text.startswith("# v1.0.0\n\nFirst.\n")
    assert result_of(await ran("publish_notes", version="v1.0.0", notes="# v1.0.0\n\nFirst.")) == published
    other = await ran("publish_notes", "op_2", version="v1.0.0", notes="Other.")
    assert isinstance(other, calls.NotExecuted)
    assert path.read_text() == text
    assert [found.name for found in path.parent.iterdir()] == ["v1.0.0.md"]


async def test_a_draft_left_by_a_killed_worker_does_no_harm(repository: Path) -> None:
    (repository / "releases").mkdir()
    (repository / "releases" / ".v1.0.0.op_1.draft").write_text("half a dra")
    path = repository / result_of(await ran("publish_notes", version="v1.0.0", notes="Whole."))["path"]
    assert path.read_text().startswith("Whole.\n")
    assert [found.name for found in path.parent.iterdir()] == ["v1.0.0.md"]


# ── the model and the gate ─────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("last_tag", "subjects", "version"),
    [
        (None, ["start"], "v0.1.0"),
        ("v1.4.2", ["fix: a leak", "words"], "v1.4.3"),
        ("v1.4.2", ["fix: a leak", "feat(cli): colours"], "v1.5.0"),
        ("v1.4.2", ["feat!: another form", "feat: colours"], "v2.0.0"),
        ("v1.4.2", ["Add colours", "Fix a leak"], "v1.5.0"),
        ("v1.4.2", ["Fix a leak", "docs: more"], "v1.4.3"),
    ],
)
def test_the_next_version_follows_from_the_changes(last_tag: str | None, subjects: list[str], version: str) -> None:
    assert next_version(last_tag, subjects) == version


def test_the_notes_say_what_the_log_says() -> None:
    changes = [("a" * 40, "feat: colours"), ("b" * 40, "tidy"), ("c" * 40, "fix(io): a leak")]
    commits = [{"commit": commit, "subject": subject} for commit, subject in changes]
    assert notes_of("v1.1.0", commits) == (
        "# v1.1.0\n\n## New\n\n- colours (aaaaaaaaaa)\n\n## Fixed\n\n- a leak (cccccccccc)\n\n"
        "## Other changes\n\n- tidy (bbbbbbbbbb)"
    )


async def played(refuse: str | None = None, task: str = "Cut the release") -> tuple[str, list[str]]:
    """Play a whole task: the model's turns and the tools it calls, with one tool refused."""
    model = app.agents["releaser"].model
    assert isinstance(model, Script)
    conversation: list[ChatMessage] = [UserText(text=task)]
    called: list[str] = []
    while True:
        reply = model.answer("work", conversation)
        assert isinstance(reply, ModelReply), reply
        if not reply.calls:
            return reply.text or "", called
        (call,) = reply.calls
        called.append(call.tool)
        if call.tool == refuse:
            result = ToolResult(call_id=call.call_id, tool=call.tool, ok=False, text="A reviewer refused this call.")
        else:
            outcome = await ran(call.tool, f"op_{call.tool}", **json.loads(call.input_text))
            assert isinstance(outcome, calls.Executed), outcome
            result = ToolResult(call_id=call.call_id, tool=call.tool, ok=True, text=outcome.result_text)
        conversation += [AssistantReply(reply=reply), ToolResults(results=(result,))]


async def test_the_model_releases_what_it_has_read(repository: Path) -> None:
    commit(repository, "start")
    git(repository, "tag", "v1.0.0")
    head = commit(repository, "feat: colours")
    answer, called = await played()
    assert called == ["read_log", "create_tag", "publish_notes"]
    assert answer == f"Released v1.1.0 with 1 change on {head[:10]}; the notes are in releases/v1.1.0.md."
    assert git(repository, "rev-parse", "v1.1.0^{commit}") == head
    assert "- colours" in (repository / "releases" / "v1.1.0.md").read_text()
    assert (await played())[0] == "There is nothing to release since v1.1.0."


async def test_the_model_takes_the_version_that_the_task_names(repository: Path) -> None:
    commit(repository, "start")
    answer, _ = await played(task="Cut the release v3.0.0, please.")
    assert answer.startswith("Released v3.0.0 ")
    assert git(repository, "tag", "--list") == "v3.0.0"


def test_the_plan_is_one_task_that_says_what_the_goal_says() -> None:
    model = app.agents["releaser"].model
    team = app.team_spec("release")
    assert isinstance(model, Script)
    assert team is not None
    reply = model.answer("plan", [UserText(text="Cut the release v3.0.0")])
    assert isinstance(reply, ModelReply)
    (task,) = check_plan([PlannedTask.model_validate(json.loads(reply.calls[0].input_text)["tasks"][0])], team)
    assert (task.id, task.assignee) == ("release", "releaser")
    assert task.description.startswith("Cut the release v3.0.0\n")


async def test_the_model_publishes_nothing_when_the_tag_was_refused(repository: Path) -> None:
    commit(repository, "start")
    answer, called = await played(refuse="create_tag")
    assert called == ["read_log", "create_tag"]
    assert answer == "v0.1.0 was not released, and nothing was published. A reviewer refused this call."
    assert not (repository / "releases").exists()


def test_the_tag_is_asked_about_in_a_sentence_and_nothing_else_is() -> None:
    def judged(tool: str, **tool_input: Any) -> Any:
        spec = app.tool_spec(tool)
        assert spec is not None
        subject = CallSubject(
            run_id="r",
            team="release",
            agent="releaser",
            task_id="release",
            tool=tool,
            input=tool_input,
            raw_input=tool_input,
            consequential=spec.consequential,
            effect=spec.effect,
            initiator="alice",
        )
        return app.judge(Boundary.TOOL_CALL, subject)

    asked = judged("create_tag", name="v1.1.0", commit="a" * 40)
    assert (asked.verdict, asked.rule) == ("suspend", "tag_needs_a_person")
    assert asked.reason == (
        "v1.1.0 would be tagged on commit aaaaaaaaaa; a version that others have fetched cannot be moved."
    )
    assert judged("publish_notes", version="v1.1.0", notes="n").verdict == "allow"


def test_the_example_is_found_by_its_import_string() -> None:
    assert load_app("examples.release:app") is app
