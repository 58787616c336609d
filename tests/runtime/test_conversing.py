"""Proves that a turn whose model is at hand is one step, and that a wait which is over leaves nothing behind."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import pytest

from placet import App, ToolContext, scripted
from placet.activities import CallModel
from placet.adapters.memory import MemoryStore
from placet.calls import ChatMessage, ModelReply
from placet.ids import Address
from placet.instants import Instant
from placet.messages import RUN, THREAD, Message, SubmitRun, enveloped
from placet.partials import Overhearing, Partial
from placet.plans import PlannedTask
from placet.runtime.conversing import Conversing, model_answered, result_envelope
from placet.runtime.engine import Engine, Settlement
from placet.runtime.ports import Delivery, Unit
from placet.runtime.scripts import ScriptedModels
from placet.script import call
from placet.values import Principal, PrincipalKind
from placet_embedded.system import machines

TENANT, RUN_ID = "acme", "run-1"
TASK = PlannedTask(id="pay", title="Pay", assignee="clerk")
AUTHOR = Principal(kind=PrincipalKind.HUMAN, id="author")
TOKENS = count(1)
THREAD_OF_TASK = Address(RUN_ID, THREAD, "task:pay")


class SetClock:
    at_ms = 1_000

    def now_ms(self) -> Instant:
        return Instant(self.at_ms)


class CountingStore(MemoryStore):
    """Counts what it is asked."""

    def __init__(self) -> None:
        super().__init__(SetClock())
        self.units: list[Unit] = []
        self.read: list[int] = []

    async def commit(self, units: Sequence[Unit]):
        self.units += units
        return await super().commit(units)

    async def read_thread(self, run_id: str, thread_id: str, upto: int) -> Sequence[str]:
        self.read.append(upto)
        return await super().read_thread(run_id, thread_id, upto)


class OneModel:
    """At hand, for every agent, until it is told otherwise."""

    def __init__(self, *said: ModelReply | Exception) -> None:
        self.said = list(said)
        self.heard: list[list[str]] = []
        self.at_hand = True

    def is_at_hand(self, agent: str) -> bool:
        return self.at_hand

    def reply(self, activity: CallModel, conversation: Sequence[ChatMessage]) -> ModelReply:
        self.heard.append([message.role for message in conversation])
        said = self.said.pop(0)
        if isinstance(said, Exception):
            raise said
        return said


def application() -> App:
    app = App("desk", version="1")

    @app.tool(effect="idempotent", consequential=True)
    async def refund(ctx: ToolContext, amount: int) -> str:
        return f"{amount}"

    clerk = app.agent("clerk", model=scripted(call("refund", amount=40_000), "done"), tools=[refund])
    app.team("desk", agents=[clerk])
    return app


@pytest.fixture
def app() -> App:
    return application()


@pytest.fixture
def store() -> CountingStore:
    return CountingStore()


async def told(engine: Engine, message: Message) -> Settlement:
    envelope = enveloped(f"m{next(TOKENS)}", message)
    return await engine.process([Delivery(envelope, next(TOKENS))])


def submission() -> SubmitRun:
    return SubmitRun(tenant=TENANT, run_id=RUN_ID, team="desk", mode="tasks", tasks=(TASK,), initiator=AUTHOR)


async def status(store: MemoryStore, address: Address) -> str | None:
    stored = (await store.load([address], [])).states[address]
    return stored.status if stored else None


def waiting(store: CountingStore) -> list[str]:
    return sorted({row.type for unit in store.units for row in unit.outbox})


async def test_a_turn_whose_model_is_at_hand_is_one_step_from_submission_to_question(
    app: App, store: CountingStore
) -> None:
    engine = Engine(machines(), app, store, at_hand=ScriptedModels(app))
    settlement = await told(engine, submission())
    assert settlement.activities == []
    assert [len(store.units), await status(store, Address(RUN_ID, RUN, ""))] == [1, "suspended"]
    assert [entry.version for entry in await store.read_journal(THREAD_OF_TASK)] == [1, 2]


async def test_it_leaves_no_timer_of_a_call_that_was_never_lost(app: App, store: CountingStore) -> None:
    await told(Engine(machines(), app, store, at_hand=ScriptedModels(app)), submission())
    assert "turn.lease_ended" not in waiting(store)


async def test_a_model_that_is_not_at_hand_is_called_after_the_commit_and_under_a_lease(
    app: App, store: CountingStore
) -> None:
    model = OneModel()
    model.at_hand = False
    settlement = await told(Engine(machines(), app, store, at_hand=model), submission())
    assert [activity.activity for activity in settlement.activities] == ["model.call"]
    assert waiting(store) == ["turn.lease_ended"]
    assert model.heard == []


async def test_the_timer_of_a_call_goes_with_the_commit_of_its_answer(app: App, store: CountingStore) -> None:
    engine = Engine(machines(), app, store)
    [activity] = (await told(engine, submission())).activities
    assert isinstance(activity, CallModel)
    answer = result_envelope(activity, model_answered(activity, ModelReply(text="done")))
    await engine.process([Delivery(answer, next(TOKENS))])
    assert await status(store, Address(RUN_ID, RUN, "")) == "succeeded"
    store._clock.at_ms = 10**9  # type: ignore[attr-defined]
    assert await store.claim_due(10, 1_000) == []


async def test_what_a_model_at_hand_raises_is_its_failure_and_ends_its_turn(app: App, store: CountingStore) -> None:
    model = OneModel(RuntimeError("the rule is broken"))
    settlement = await told(Engine(machines(), app, store, at_hand=model), submission())
    assert len(settlement.done) == 1
    assert await status(store, THREAD_OF_TASK) == "failed"
    assert "the rule is broken" in str(await store.state(TENANT, Address(RUN_ID, RUN, "")))


async def test_what_another_process_has_committed_of_a_conversation_is_read(app: App, store: CountingStore) -> None:
    said = [ModelReply(text="one"), ModelReply(text="two")]
    first = Conversing(OneModel(), store)
    model = OneModel(*said)
    engine = Engine(machines(), app, store, at_hand=model)
    await told(engine, submission())
    assert store.read == []
    assert model.heard == [["user"]]
    call_again = CallModel(
        tenant=TENANT, run_id=RUN_ID, thread_id="task:pay", turn=2, attempt=1, purpose="work", team="desk",
        agent="clerk", messages=2, timeout_ms=1_000,
    )  # fmt: skip
    assert [message.role for message in await first._conversation(call_again, ())] == ["user", "assistant"]
    assert store.read == [2]


async def test_a_script_with_a_function_in_it_is_not_at_hand() -> None:
    assert scripted("a", call("refund", amount=1)).is_at_hand
    assert not scripted("a", lambda said: "b").is_at_hand


@pytest.mark.parametrize("listens", [True, False])
async def test_a_turn_that_is_one_step_is_heard_word_by_word_by_who_listens(
    app: App, store: CountingStore, listens: bool
) -> None:
    overhearing, heard = Overhearing(), list[Partial]()
    overhearing.overhear(RUN_ID if listens else "another", heard.append)
    engine = Engine(machines(), app, store, at_hand=OneModel(ModelReply(text="It is done.")), partials=overhearing)
    await told(engine, submission())
    assert await status(store, Address(RUN_ID, RUN, "")) == "succeeded"
    words = [("task:pay/1", 0, "It "), ("task:pay/1", 3, "is "), ("task:pay/1", 6, "done.")]
    assert [(piece.turn, piece.at, piece.text) for piece in heard] == (words if listens else [])
