"""Decides what the scripted model of the release says: it reads the log, and writes notes from what it has read."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

from placet import scripted
from placet.calls import ToolResult, ToolResults, UserText
from placet.script import Conversation, Step, call, plan

TITLES = {"feat": "New", "fix": "Fixed", "other": "Other changes"}
WORDS = {"add": "feat", "introduce": "feat", "support": "feat", "fix": "fix", "correct": "fix", "repair": "fix"}
_PREFIX = re.compile(r"(?P<kind>[a-z]+)(\([^)]*\))?(?P<breaking>!?): *(?P<what>.+)")
_VERSION = re.compile(r"\bv[0-9]+\.[0-9]+\.[0-9]+\b")


# ── the turns ──────────────────────────────────────────────────────────────────────────


def plan_it(conversation: Conversation) -> Step:
    """One task, which says what the goal says."""
    goal = asked_for(conversation)
    about = "Read the log, tag the head with the next version, publish the notes."
    task = {"id": "release", "title": "Cut the release", "description": f"{goal}\n{about}", "assignee": "releaser"}
    return plan([task])


def tag_the_head(conversation: Conversation) -> Step:
    """Having read the log: ask for the tag."""
    read = result_of(conversation, "read_log")
    if not read.ok:
        return f"The log could not be read: {read.text}"
    log = json.loads(read.text)
    if not log["commits"]:
        return f"There is nothing to release since {log['last_tag']}."
    return call("create_tag", name=version_of(conversation), commit=log["head"])


def publish(conversation: Conversation) -> Step:
    """Having the tag: publish the notes."""
    version, tagged = version_of(conversation), result_of(conversation, "create_tag")
    if not tagged.ok:
        return f"{version} was not released, and nothing was published. {tagged.text}"
    return call("publish_notes", version=version, notes=notes_of(version, log_of(conversation)["commits"]))


def report(conversation: Conversation) -> Step:
    """Having published: say so."""
    version, log, published = version_of(conversation), log_of(conversation), result_of(conversation, "publish_notes")
    if not published.ok:
        return f"{version} is tagged, but its notes were not published: {published.text}"
    changes, where = len(log["commits"]), json.loads(published.text)["path"]
    many = "s" * (changes != 1)
    return f"Released {version} with {changes} change{many} on {log['head'][:10]}; the notes are in {where}."


model = scripted(call("read_log"), tag_the_head, publish, report, planning=[plan_it])


# ── what it understands ────────────────────────────────────────────────────────────────


class Change(NamedTuple):
    """A commit as the notes tell it."""

    kind: str
    what: str
    breaking: bool


def understood(subject: str) -> Change:
    """A commit's first line: `feat(x)!: what`, or plain words such as `Fix the leak`."""
    found = _PREFIX.fullmatch(subject)
    if found is not None:
        known = found["kind"] in TITLES
        return Change(
            found["kind"] if known else "other", found["what"] if known else subject, found["breaking"] == "!"
        )
    return Change(WORDS.get(subject.partition(" ")[0].lower(), "other"), subject, False)


def next_version(last_tag: str | None, subjects: list[str]) -> str:
    """Major for a breaking change, minor for a new feature, else patch; v0.1.0 to begin with."""
    if last_tag is None:
        return "v0.1.0"
    major, minor, patch = (int(part) for part in last_tag.removeprefix("v").split("."))
    changes = [understood(subject) for subject in subjects]
    if any(change.breaking for change in changes):
        return f"v{major + 1}.0.0"
    if any(change.kind == "feat" for change in changes):
        return f"v{major}.{minor + 1}.0"
    return f"v{major}.{minor}.{patch + 1}"


def notes_of(version: str, commits: list[dict[str, str]]) -> str:
    """The changes by kind, each with the commit it came with."""
    chapters: dict[str, list[str]] = {kind: [] for kind in TITLES}
    for commit in commits:
        change = understood(commit["subject"])
        chapters[change.kind].append(f"- {change.what} ({commit['commit'][:10]})")
    text = [f"# {version}"]
    for kind, lines in chapters.items():
        if lines:
            text += ["", f"## {TITLES[kind]}", "", *lines]
    return "\n".join(text)


def asked_for(conversation: Conversation) -> str:
    """The goal, or the task."""
    return next(said.text for said in conversation if isinstance(said, UserText))


def version_of(conversation: Conversation) -> str:
    """The version that the task names, or the next one."""
    named = _VERSION.search(asked_for(conversation))
    if named is not None:
        return named[0]
    log = log_of(conversation)
    return next_version(log["last_tag"], [commit["subject"] for commit in log["commits"]])


def log_of(conversation: Conversation) -> dict[str, Any]:
    """What read_log has told."""
    log: dict[str, Any] = json.loads(result_of(conversation, "read_log").text)
    return log


def result_of(conversation: Conversation, tool: str) -> ToolResult:
    """The last result of a tool."""
    results = [result for said in conversation if isinstance(said, ToolResults) for result in said.results]
    return [result for result in results if result.tool == tool][-1]
