"""Decides what an agent may do to a git repository: read its log, create a tag, publish release notes.

The repository is the one that RELEASE_REPOSITORY names when a tool runs. Git is called without a shell.
"""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path
from typing import Annotated, NamedTuple, TypedDict

from pydantic import Field

from placet import App, Executed, NotExecuted, ToolContext, Unsure

app = App("release", version="2026.11")

Version = Annotated[str, Field(pattern=r"^v[0-9]+\.[0-9]+\.[0-9]+$", max_length=40, description="Such as v1.4.0.")]
Commit = Annotated[str, Field(pattern=r"^[0-9a-f]{40}$", description="The full hash of a commit.")]
Notes = Annotated[str, Field(min_length=1, max_length=20_000, description="Markdown.")]

COMMITS_MAX = 200
_VERSION = re.compile(r"v[0-9]+\.[0-9]+\.[0-9]+")
MARK = "<!-- placet operation: {} -->"
TAGGER = {f"GIT_COMMITTER_{part}": value for part, value in (("NAME", "placet"), ("EMAIL", "placet@localhost"))}


class Change(TypedDict):
    """One commit, by its first line."""

    commit: str
    subject: str


class Log(TypedDict):
    """What has happened since the last version."""

    last_tag: str | None
    head: str
    commits: list[Change]


# ── read the log ───────────────────────────────────────────────────────────────────────


@app.tool(effect="read_only", retry=3, timeout_s=20)
async def read_log(ctx: ToolContext) -> Log:
    """Read the commits since the last version tag, newest first, and the commit that would be released."""
    head = await _git(ctx, "rev-parse", "--verify", "HEAD^{commit}")
    tags = await _git(ctx, "tag", "--list", "v[0-9]*", "--merged", head, "--sort=-version:refname")
    last_tag = next((tag for tag in tags.splitlines() if _VERSION.fullmatch(tag)), None)
    span = f"{last_tag}..{head}" if last_tag else head
    lines = await _git(ctx, "log", f"--max-count={COMMITS_MAX}", "--format=%H %s", span)
    split = [line.partition(" ") for line in lines.splitlines()]
    return Log(
        last_tag=last_tag, head=head, commits=[Change(commit=commit, subject=subject) for commit, _, subject in split]
    )


# ── create the tag ─────────────────────────────────────────────────────────────────────


class Tag(NamedTuple):
    """A tag that exists."""

    commit: str
    message: str

    def made_by(self, ctx: ToolContext) -> bool:
        """Whether it is the effect of this operation: each tag carries the id of the one that made it."""
        return MARK.format(ctx.operation_id) in self.message


@app.tool(effect="reconcilable", consequential=True, timeout_s=20, quiescence_s=1)
async def create_tag(ctx: ToolContext, name: Version, commit: Commit) -> dict[str, str]:
    """Create an annotated tag on a commit. Refuses a name that is taken."""
    found = await _find_tag(ctx, name)
    if found is None:
        message = f"Release {name}\n\n{MARK.format(ctx.operation_id)}"
        await _git(ctx, "-c", "tag.gpgSign=false", "tag", "--annotate", f"--message={message}", name, commit)
    elif not (found.made_by(ctx) and found.commit == commit):
        raise NotExecuted(f"the tag {name} exists already, on commit {found.commit[:10]}")
    return {"tag": name, "commit": commit}


@create_tag.reconcile
async def tag_exists(ctx: ToolContext, name: str, commit: str) -> Executed | NotExecuted | Unsure:
    """Does the tag exist and point there, made by this operation?"""
    found = await _find_tag(ctx, name)
    if found is None:
        return NotExecuted(f"there is no tag {name}")
    if not found.made_by(ctx):
        return NotExecuted(f"the tag {name} was made by somebody else", transient=False)
    if found.commit != commit:
        return Unsure(f"the tag {name} was made by this operation and now points to {found.commit[:10]}")
    return Executed({"tag": name, "commit": commit})


async def _find_tag(ctx: ToolContext, name: str) -> Tag | None:
    format_ = "%(if)%(*objectname)%(then)%(*objectname)%(else)%(objectname)%(end) %(contents)"
    shown = await _git(ctx, "for-each-ref", f"--format={format_}", f"refs/tags/{name}")
    commit, _, message = shown.partition(" ")
    return Tag(commit, message) if commit else None


# ── publish the notes ──────────────────────────────────────────────────────────────────


@app.tool(effect="idempotent", retry=3, timeout_s=20)
def publish_notes(ctx: ToolContext, version: Version, notes: Notes) -> dict[str, str]:
    """Publish the notes of a version as releases/VERSION.md. Published notes are not replaced."""
    folder = _repository() / "releases"
    folder.mkdir(exist_ok=True)
    path = folder / f"{version}.md"
    mark = MARK.format(ctx.idempotency_key)
    draft = folder / f".{version}.{ctx.operation_id}.draft"
    with draft.open("w", encoding="utf-8") as file:
        file.write(f"{notes.rstrip()}\n\n{mark}\n")
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(draft, path)  # whole or not at all, and never over another
    except FileExistsError:
        if mark not in path.read_text(encoding="utf-8"):
            raise NotExecuted(f"the notes of {version} have been published already") from None
    finally:
        draft.unlink()
    return {"path": f"releases/{version}.md"}


# ── git ────────────────────────────────────────────────────────────────────────────────


def _repository() -> Path:
    named = os.environ.get("RELEASE_REPOSITORY")
    if not named:
        raise NotExecuted("set RELEASE_REPOSITORY to the folder of a git repository")
    return Path(named)


async def _git(ctx: ToolContext, *arguments: str) -> str:
    """What git prints, stripped. NotExecuted when git refuses; Unsure when it was ended from outside."""
    command = ("git", "-C", str(_repository()), *arguments)
    environment = {**os.environ, **TAGGER, "LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0"}
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *command, env=environment, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe
    )
    try:
        async with asyncio.timeout(ctx.left_s()):
            printed, complained = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    code = await process.wait()
    if code < 0:
        raise Unsure(f"git was ended by signal {-code}")
    if code > 0:
        lines = complained.decode(errors="replace").strip().splitlines() or ["no reason given"]
        raise NotExecuted(f"git refused: {lines[0].removeprefix('fatal: ')}")
    return printed.decode(errors="replace").strip()
