"""Decides what a repository looks like in which the release example has something to do.

python -m examples.release.repository FOLDER      makes one there, unless there is one
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

COMMITS = (
    ("feature.txt", "Add the export of invoices"),
    ("fix.txt", "Fix rounding of totals"),
    ("doc.txt", "Explain refunds"),
)


def git(repository: Path, *arguments: str) -> str:
    """The output of one git command."""
    identity = ["-c", "user.name=Placet demo", "-c", "user.email=demo@localhost"]
    done = subprocess.run(["git", *identity, *arguments], cwd=repository, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def make_repository(repository: Path) -> None:
    """A repository with a tag v1.1.0 and three commits since."""
    repository.mkdir()
    git(repository, "init", "--quiet", "--initial-branch=main")
    (repository / "README").write_text("An example.\n")
    git(repository, "add", ".")
    git(repository, "commit", "--quiet", "-m", "Begin")
    git(repository, "tag", "v1.1.0")
    for name, subject in COMMITS:
        (repository / name).write_text(subject + "\n")
        git(repository, "add", ".")
        git(repository, "commit", "--quiet", "-m", subject)


def scratch_repository(folder: Path) -> Path:
    """A new repository below a folder."""
    repository = folder / "repository"
    make_repository(repository)
    return repository


def main(arguments: list[str]) -> int:
    """Make it, and say so."""
    repository = Path(arguments[0])
    if (repository / ".git").is_dir():
        print(f"there is a repository in {repository}")
        return 0
    draft = repository.with_name(f".{repository.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    make_repository(draft)
    draft.rename(repository)  # whole or not at all
    print(f"made a repository in {repository}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
