"""Conformance section B: what is refused when a request is made, as far as no store is needed."""

from __future__ import annotations

import datetime
import decimal
import json
import math
import uuid
from typing import Any

import pytest
from pydantic import BaseModel

from placet import limits
from placet.errors import ContractError
from placet.requests import (
    OperationOutcomeContent,
    PlanContent,
    TaskSnapshot,
    ToolCallContent,
    content_text,
    verify_request,
)
from tests.cases import case
from tests.vocabulary.reviewed import (
    AT_MS,
    BOUNDARIES,
    CONTENTS,
    Word,
    create,
    create_kind,
    plan,
    refused,
    task,
    tool_call,
)

# ── B. creation ────────────────────────────────────────────────────────────────────────


@case("B01")
@pytest.mark.parametrize("blank", ["", " ", "\t\n", "\u00a0\u3000", None, 1, ["run-1"]])
def test_blank_run_boundary_or_tenant_is_refused(blank: Any) -> None:
    for field in ("run_id", "boundary", "tenant"):
        assert field in refused(f"/{field}", **{field: blank})


@case("B02")
@pytest.mark.parametrize("scope", [*CONTENTS, "Plan", "", None])
@pytest.mark.parametrize("kind", CONTENTS)
def test_scope_and_kind_must_agree(scope: Any, kind: str) -> None:
    if scope == kind:
        assert create_kind(kind).scope == kind
    else:
        for boundary in (BOUNDARIES[kind], BOUNDARIES.get(scope, BOUNDARIES[kind])):
            refused("/scope", CONTENTS[kind], scope=scope, boundary=boundary)


@case("B03")
def test_a_reason_is_text_or_absent_and_an_empty_one_is_kept() -> None:
    wrong: list[Any] = [5, [], {}, True, b"why"]
    for reason in wrong:
        refused("/reason", reason=reason)
    assert create().reason is None
    assert create(reason="").reason == ""
    assert create(reason=" as given ").reason == " as given "


@case("B04")
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_none_is_refused_with_its_path(number: float) -> None:
    assert "input.a[0]" in refused("/content/input/a/0", tool_call({}, input={"a": [number]}))
    assert "rawInput.a[0].b" in refused("/content/rawInput/a/0/b", tool_call({"a": [{"b": number}]}))


class Model(BaseModel):
    a: int = 1


@case("B06")
@pytest.mark.parametrize(
    "value",
    [
        datetime.datetime(2026, 8, 8, tzinfo=datetime.UTC), datetime.date(2026, 8, 8), decimal.Decimal("1.10"), b"a",
        {1}, uuid.UUID(int=1), Word.A, Model(), len, object(), TaskSnapshot.model_validate(task("a")),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_a_value_that_json_does_not_have_is_refused_not_turned_into_text(value: object) -> None:
    assert "input.when" in refused("/content/input/when", tool_call({}, input={"when": value}))
    refused("/content/toolName", tool_call({}, toolName=value))


@case("B08")
@pytest.mark.parametrize("key", [1, None, True, ("a",)], ids=repr)
def test_a_key_that_is_not_text_is_refused(key: object) -> None:
    assert json.dumps({1: 0}) == '{"1": 0}', "a plain encoder would have let it through"
    refused("/content/rawInput", tool_call({key: 1}))
    refused("/content/input/deep/0", tool_call({}, input={"deep": [{key: 1}]}))


@case("B10")
def test_half_of_a_surrogate_pair_is_refused_everywhere() -> None:
    refused("/content/rawInput/s", tool_call({"s": "a\ud83d"}))
    refused("/content/rawInput", tool_call({"\udc00": 1}))
    refused("/reason", reason="\ud83d")
    refused("/run_id", run_id="run-\ud83d")
    refused("/content/task/title", {"kind": "task_dispatch", "task": task("a", title="\ud83d")})


MALFORMED: list[tuple[str, Any]] = [
    ("/content/continuation", plan("run")),
    ("/content/continuation", plan(None)),
    ("/content/continuation", {"kind": "plan", "tasks": []}),
    ("/content/tasks", {"kind": "plan", "continuation": "execute"}),
    ("/content/tasks", {"kind": "plan", "continuation": "execute", "tasks": {}}),
    ("/content/tasks/0", plan("execute", "a")),
    ("/content/rawInput", tool_call({}, rawInput=[])),
    ("/content/input", tool_call({}, input="{}")),
    ("/content/input", tool_call({}, input=None)),
    ("/content/consequential", tool_call({}, consequential="true")),
    ("/content/consequential", tool_call({}, consequential=1)),
    ("/content/kind", tool_call({}, kind="deploy")),
    ("/content/kind", tool_call({}, kind=["tool_call"])),
    ("/content/kind", {}),
    ("/content/tasks/1/title", plan("execute", task("a"), {k: v for k, v in task("b").items() if k != "title"})),
    ("/content/tasks/0/title", plan("execute", task("a", title=" "))),
    ("/content/tasks/0/title", plan("execute", task("a", title=7))),
    ("/content/tasks/0/createdAt", plan("execute", task("a", createdAt="2026"))),
    ("/content/tasks/0/createdAt", plan("execute", task("a", createdAt="2026-02-30T00:00:00Z"))),
    ("/content/tasks/0/updatedAt", plan("execute", task("a", updatedAt="2026-08-08T00:00:00"))),
    ("/content/tasks/0/dependsOn", plan("execute", task("a", dependsOn="b"))),
    ("/content/tasks/0/dependsOn/0", plan("execute", task("a", dependsOn=[" "]))),
    ("/content/tasks/0/assignee", plan("execute", task("a", assignee=None))),
    ("/content/tasks/0/priority", plan("execute", task("a", priority=True))),
    ("/content/tasks/0/owner", plan("execute", task("a", owner="x"))),
    ("/content/tasks/0/created_at", plan("execute", task("a", created_at="2026-08-08T00:00:00Z"))),
    *((f"/content/{name}", tool_call({}, **{name: blank})) for name in ("toolName", "agentName", "taskId", "toolCallId")
      for blank in ("", " ", "\t", None, 1, "a\nb", " a", "a\u202e", "x" * 129)),
    ("/content/tool_name", tool_call({}, tool_name="deploy")),
    ("/content/toolName", {"tool_name" if k == "toolName" else k: v for k, v in tool_call({}).items()}),
    ("/content/taskId", {k: v for k, v in tool_call({}).items() if k != "taskId"}),
    ("/content", "{}"), ("/content", [tool_call({})]), ("/content", 7),
]  # fmt: skip


@case("B11")
@pytest.mark.parametrize(("pointer", "content"), MALFORMED)
def test_malformed_content_is_refused_at_creation(pointer: str, content: Any) -> None:
    kind = content.get("kind") if isinstance(content, dict) else None
    scope = kind if isinstance(kind, str) and kind in BOUNDARIES else "tool_call"
    refused(pointer, content, scope=scope, boundary=BOUNDARIES[scope])


@pytest.mark.parametrize("kind", CONTENTS)
def test_a_boundary_of_other_content_is_refused(kind: str) -> None:
    assert create_kind(kind).boundary == BOUNDARIES[kind]
    for other in {*BOUNDARIES.values(), "x"} - {BOUNDARIES[kind]}:
        assert BOUNDARIES[kind] in refused("/boundary", CONTENTS[kind], scope=kind, boundary=other)


@case("B13")
@pytest.mark.parametrize("kind", ["plan", "task_round", "task_dispatch"])
@pytest.mark.parametrize("wiring", [{"judge": "critic"}, None, len, object()])
def test_a_task_with_live_verification_cannot_wait_for_an_approval(kind: str, wiring: object) -> None:
    live = task("c", verify=wiring)
    content, pointer = {
        "plan": (plan("execute", live), "/content/tasks/0/verify"),
        "task_round": (CONTENTS["task_round"] | {"nextTasks": [live]}, "/content/nextTasks/0/verify"),
        "task_dispatch": ({"kind": kind, "task": live}, "/content/task/verify"),
    }[kind]
    refused(pointer, content, scope=kind, boundary="c")


@case("B21")
def test_content_over_the_bound_is_refused_at_creation() -> None:
    frame = len(content_text(tool_call({"s": ""})).encode())
    room = limits.CONTENT_BYTES_MAX - frame
    half = "é" * (room // 4)  # stands in raw and in validated input, two bytes each
    assert len(create(tool_call({"s": half})).content_text.encode()) > limits.CONTENT_BYTES_MAX - 4
    assert str(limits.CONTENT_BYTES_MAX) in refused("/content", tool_call({"s": half + "éé"}))
    assert "at most 100 are" in refused("/content", content_bytes_max=100)
    deep: Any = {}
    for _ in range(limits.CONTENT_DEPTH_MAX):
        deep = {"x": deep}
    assert "nested deeper than 48" in refused("/content/input" + "/x" * 47, tool_call({}, input=deep))


@case("B22")
@pytest.mark.parametrize("inside", ["\n", "\r\n", "\r", "\x00", "\u2028", "\u200b", "\u202e", "\x85", "\ufeff"])
def test_a_line_feed_or_anything_unseen_within_an_identity_is_refused(inside: str) -> None:
    refused("/run_id", run_id=f"run{inside}1")
    refused("/tenant", tenant=f"ac{inside}me")
    refused("/boundary", boundary=f"task-1{inside}:call-1")


@case("B23")
def test_a_run_id_has_at_most_128_characters() -> None:
    assert create(run_id="r" * 128).run_id == "r" * 128
    assert create(run_id=" " + "r" * 128 + " ").run_id == "r" * 128
    assert "129" in refused("/run_id", run_id="r" * 129)


def test_content_is_copied_so_that_a_later_change_changes_nothing() -> None:
    given_input: dict[str, Any] = {"env": "staging", "list": [1]}
    content = tool_call(given_input)
    typed = ToolCallContent.model_validate(content)
    made, by_model = create(content), create(typed)
    given_input["env"] = "production"
    given_input["list"].append(2)
    content["toolName"] = "destroy"
    typed.input["env"] = "production"
    verify_request(made)
    assert made == by_model
    assert '"env":"staging"' in made.content_text
    assert "production" not in made.content_text


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("requested_at_ms", -1), ("requested_at_ms", True), ("requested_at_ms", 1.5), ("requested_at_ms", "2026"),
        ("requested_at_ms", 2**53), ("expires_at_ms", AT_MS), ("expires_at_ms", 0), ("expires_at_ms", "soon"),
        ("use_by_ms", AT_MS - 1), ("use_by_ms", True), ("quorum", 0), ("quorum", True), ("quorum", 1.0),
        ("quorum", None), ("initiator", None), ("initiator", 7), ("tool_version", b"1"), ("policy_version", "a\x00"),
        ("asker_key", Word.A), ("app_version", "v" * (limits.TEXT_CHARS_MAX + 1)),
        ("agent_name", "another"), ("operation_id", ["op"]),
    ],
)  # fmt: skip
def test_a_field_beside_the_content_is_checked_too(field: str, value: Any) -> None:
    assert field in refused(f"/{field}", **{field: value})


def test_what_stands_beside_the_hash_is_kept() -> None:
    made = create(
        initiator="alice", operation_id="op_1", tool_version="1", tool_schema_digest="d", policy_version="p",
        app_version="a", expires_at_ms=AT_MS + 1, use_by_ms=AT_MS + 2, quorum=2, asker_machine="run", asker_key="",
    )  # fmt: skip
    assert (made.tenant, made.agent_name, made.initiator, made.operation_id) == ("acme", "operator", "alice", "op_1")
    assert (made.expires_at_ms, made.use_by_ms, made.quorum) == (AT_MS + 1, AT_MS + 2, 2)
    verify_request(made)


def test_agent_and_operation_are_taken_from_content_that_names_them() -> None:
    assert create_kind("operation_outcome").operation_id == "op_1"
    assert create_kind("operation_outcome").agent_name == "operator"
    assigned = {"kind": "task_dispatch", "task": task("a", assignee="worker")}
    assert create_kind("task_dispatch", assigned).agent_name == "worker"
    assert create_kind("plan").agent_name == ""
    with pytest.raises(ContractError, match="operation_id"):
        create_kind("operation_outcome", operation_id="op_2")


def test_a_doubt_about_a_later_attempt_is_a_new_question() -> None:
    first = OperationOutcomeContent.model_validate(CONTENTS["operation_outcome"])
    later = first.model_copy(update={"started_at": "2026-08-08T00:00:01.000Z"})
    assert create_kind("operation_outcome", first).request_id != create_kind("operation_outcome", later).request_id


def test_a_task_field_that_is_none_is_absent_from_the_content() -> None:
    at = "2026-08-08T00:00:00.000Z"
    snapshot = TaskSnapshot(
        id="a", title="T a", description="do a", status="pending", created_at=at, updated_at=at, assignee=None
    )
    content = PlanContent(tasks=(snapshot,), continuation="execute")
    assert json.loads(content_text(content)) == plan("execute", task("a"))
    assert create_kind("plan", content) == create_kind("plan", plan("execute", task("a")))


def test_a_plan_shows_the_calls_that_it_makes_directly() -> None:
    direct = task("a", call={"toolName": "deploy", "input": {"env": "production"}})
    made = create_kind("plan", plan("execute", direct))
    assert '"env":"production"' in made.content_text
    assert made.request_hash != create_kind("plan", plan("execute", task("a"))).request_hash
