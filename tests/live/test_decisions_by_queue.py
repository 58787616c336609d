"""Proves that a person outside decides by the queue alone: example and command line, as processes, on services."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.architecture.sources import ROOT
from tests.live.system import System, wait_until
from tests.live.test_services import (
    GOAL,
    TAG,
    assert_happened_once,
    repository,  # noqa: F401  a fixture
    system,  # noqa: F401  a fixture
    tags,
)

PLACET = Path(sys.executable).parent / "placet"


def run(command: Sequence[str | Path], **variables: str) -> subprocess.CompletedProcess[str]:
    """A process with nothing but these variables of ours."""
    plain = {key: value for key, value in os.environ.items() if not key.startswith("PLACET_")}
    return subprocess.run(
        command, cwd=ROOT, env=plain | variables, capture_output=True, text=True, check=False, timeout=120
    )


async def test_the_example_approves_once_and_its_repeat_is_the_same_decision(
    system: System,  # noqa: F811
    repository: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    def job() -> None:
        system.start()
        system.submit("r1", GOAL)
        system.wait_for("r1", "suspended")
        key = tmp_path / "alice.json"
        made = run([PLACET, "keys", "new", key, "--person", "alice"])
        assert made.returncode == 0, made.stderr
        assert key.stat().st_mode & 0o777 == 0o600
        request = system.request_of("r1")
        where = [system.settings["ENVIRONMENT"], "r1", request.request_id, request.request_hash]
        command: Sequence[str | Path] = [sys.executable, "-m", "examples.publish_decision", key, *where]
        stranger = run(command, AMQP_URL=system.settings["AMQP_URL"])
        assert stranger.returncode != 0
        assert "nobody has registered the key" in stranger.stderr
        registry = json.loads(system.keys.registry.read_text())
        registry["keys"].append(json.loads(made.stdout))
        draft = system.keys.registry.with_suffix(".draft")
        draft.write_text(json.dumps(registry))
        draft.replace(system.keys.registry)  # as an operator does it, without a restart
        for _ in range(2):
            done = run(command, AMQP_URL=system.settings["AMQP_URL"])
            assert (done.returncode, done.stdout) == (0, "accepted approved alice\n"), done.stderr
        system.wait_for("r1", "succeeded")
        assert_happened_once(system, repository)
        (approval,) = system.of("approval")
        good = system.keys.registry.read_text()
        system.keys.registry.write_text(good[:-1])
        status, body = approval.probe()
        assert (status, "keys known before still count" in body["connections"]["decision_keys"]) == (503, True)
        system.keys.registry.write_text(good)
        wait_until(lambda: approval.probe()[0] == 200, 5, approval.describe)
        assert tags(repository) == [TAG]

    await asyncio.to_thread(job)


async def test_an_edit_by_the_queue_is_asked_about_anew_and_what_another_person_approves_is_done(
    system: System,  # noqa: F811
    repository: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    def job() -> None:
        system.start()
        system.submit("r1", GOAL)
        system.wait_for("r1", "suspended")
        request = system.request_of("r1")
        key = tmp_path / "alice.json"
        alice = system.keys.enrol("alice")
        key.write_text(alice.file().model_dump_json())
        given = {
            "PLACET_AMQP_URL": system.settings["AMQP_URL"],
            "PLACET_ENVIRONMENT": system.settings["ENVIRONMENT"],
            "PLACET_STATE_DIR": str(tmp_path / "state"),
        }
        with system.client() as client:
            asked = json.loads(client.request(request.request_id).content_text)["rawInput"]
        value = json.dumps({**asked, "name": "v9.9.9"})
        where: list[str | Path] = ["--run", "r1", "--key", key, "--yes", "--json"]
        edit: list[str | Path] = [PLACET, "edit", request.request_id, "--input", value, "--hash", request.request_hash]
        edited = run([*edit, *where], **given)
        assert edited.returncode == 0, edited.stderr
        successor = json.loads(edited.stdout)["successor"]
        with system.client() as client:

            def found() -> bool:
                return any(item.request_id == successor for item in client.requests().items)

            wait_until(found, 20)
            shown = client.request(successor)
            assert (shown.supersedes, shown.requesters) == (request.request_id, ["alice"])
            own: list[str | Path] = [PLACET, "approve", successor, "--hash", shown.request_hash]
            refused = run([*own, *where], **given)
            assert json.loads(refused.stderr.splitlines()[-1])["error"]["code"] == "APPROVER_NOT_ALLOWED"
            client.decide(
                successor, decision="approve", request_hash=shown.request_hash, decision_id="d-2", person="bob"
            )
        system.wait_for("r1", "succeeded")
        made = subprocess.run(["git", "-C", repository, "tag", "--list", "v*.*.*"], capture_output=True, text=True)
        assert made.stdout.split() == ["v1.1.0", "v9.9.9"]

    await asyncio.to_thread(job)


async def test_the_command_line_decides_by_the_queue_with_and_without_a_gateway(
    system: System,  # noqa: F811
    tmp_path: Path,
) -> None:
    def job() -> None:
        system.start()
        system.submit("r1", GOAL)
        system.wait_for("r1", "suspended")
        request = system.request_of("r1")
        key = tmp_path / "alice.json"
        alice = system.keys.enrol("alice")
        key.write_text(alice.file().model_dump_json())
        given = {
            "PLACET_AMQP_URL": system.settings["AMQP_URL"],
            "PLACET_ENVIRONMENT": system.settings["ENVIRONMENT"],
            "PLACET_STATE_DIR": str(tmp_path / "state"),
        }
        shown = {"PLACET_URL": f"http://127.0.0.1:{system.http_port}", "PLACET_TOKEN": system.token}
        approve: list[str | Path] = [PLACET, "approve", request.request_id, "--key", key, "--yes", "--json"]
        for way, variables in (
            (["--environment", "elsewhere", "--run", "r1", "--hash", request.request_hash], given),
            (["--run", "r1", "--hash", "0" * 64], given),
        ):
            refused = run([*approve, *way], **variables)
            assert refused.returncode == 1, refused.stderr
        for way, variables in (([], given | shown), (["--run", "r1", "--hash", request.request_hash], given)):
            done = run([*approve, *way], **variables)
            if done.returncode == 0:
                assert json.loads(done.stdout)["decided_by"] == "alice"
            else:  # the second command is another decision: its id was forgotten with the first receipt
                assert json.loads(done.stderr)["error"]["code"] == "APPROVAL_CONFLICT", done.stderr
                assert way
        system.wait_for("r1", "succeeded")
        wait_until(lambda: not list((tmp_path / "state" / "decisions").glob("*")), 5)
        with system.client() as client:
            [vote] = client.request(request.request_id).votes
            assert vote.person_id == "alice"

    await asyncio.to_thread(job)
