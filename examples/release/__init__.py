"""Cut a release of a real git repository: read the log, tag the head, publish the notes. The tag waits for a person.

RELEASE_REPOSITORY=path/to/repository placet dev examples.release:app
"""

from examples.release.model import model
from examples.release.tools import app, create_tag, publish_notes, read_log
from placet import Suspend
from placet.gates import CallSubject

__all__ = ["app"]


@app.gate("tool_call", tools=[create_tag], expires_after_s=7 * 24 * 3_600)
def tag_needs_a_person(call: CallSubject) -> Suspend:
    """A tag that others have fetched cannot be taken back."""
    name, commit = call.input["name"], call.input["commit"]
    return Suspend(
        f"{name} would be tagged on commit {commit[:10]}; a version that others have fetched cannot be moved."
    )


releaser = app.agent(
    "releaser",
    model=model,
    instructions="You cut releases of a git repository: the next version, its notes, nothing else.",
    tools=[read_log, create_tag, publish_notes],
    timeout_s=20,
)
app.team("release", agents=[releaser])
