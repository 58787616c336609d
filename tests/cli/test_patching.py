"""A change of a plan by command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from placet.messages import PatchPlan
from tests.cli.conftest import Placet
from tests.gateway.test_patches import TASK, applied
from tests.gateway.world import World


def test_a_patch_goes_out_by_command_from_a_file(world: World, placet: Placet, tmp_path: Path) -> None:
    world.add_run("r1")
    applied(world, outcome="applied")
    file = tmp_path / "patch.json"
    file.write_text(json.dumps({"add": [{**TASK, "title": "{{ what }}"}], "remove": ["b"]}), encoding="utf-8")
    result = placet("run", "patch", "r1", str(file), "--reason", "why", "--base", "0" * 64, "--var", "what=Note it")
    assert (result.code, "applied" in result.out) == (0, True)
    [(message, _)] = world.asked
    assert isinstance(message, PatchPlan)
    assert (message.add[0].title, message.reason, message.base) == ("Note it", "why", "0" * 64)
    assert message.patch_id.startswith("patch-")


def test_a_patch_that_waits_for_a_person_says_so_by_its_exit_code(world: World, placet: Placet, tmp_path: Path) -> None:
    world.add_run("r1")
    applied(world, request_id="apr_1")
    file = tmp_path / "patch.json"
    file.write_text('{"remove": ["b"]}', encoding="utf-8")
    result = placet("run", "patch", "r1", str(file), "--id", "p-7", "--json")
    assert (result.code, result.document["request_id"]) == (3, "apr_1")


@pytest.mark.parametrize("text", ["[]", '{"adds": []}', "{"])
def test_a_file_that_is_no_patch_is_refused_before_anything_is_sent(
    world: World, placet: Placet, tmp_path: Path, text: str
) -> None:
    world.add_run("r1")
    file = tmp_path / "patch.json"
    file.write_text(text, encoding="utf-8")
    assert placet("run", "patch", "r1", str(file)).code == 2
    assert world.asked == []
