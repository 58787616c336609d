"""Proves that a model call outlives an outage of the store that falls between its commit and its beginning."""

from __future__ import annotations

from placet.adapters.memory import MemoryStore
from placet.errors import Code, RetryableError
from placet.messages import ModelAnswered
from tests.runtime.test_engine import SetClock
from tests.runtime.test_invoker import Invoked, a_model_call


class AwayStore(MemoryStore):
    """Cannot be read so many times."""

    def __init__(self, times: int) -> None:
        super().__init__(SetClock())
        self.left = times

    async def read_thread(self, run_id: str, thread_id: str, upto: int) -> list[str]:
        if self.left:
            self.left -= 1
            raise RetryableError(Code.STORE_UNAVAILABLE, "the store is away")
        return list(await super().read_thread(run_id, thread_id, upto))


def invoked_with(store: MemoryStore, **terms) -> Invoked:
    invoked = Invoked(**terms)
    invoked.store = invoked.invoker._store = store
    invoked.world.go.set()
    return invoked


async def test_a_conversation_that_cannot_be_read_is_asked_for_again_and_the_model_is_called_once() -> None:
    store = AwayStore(2)
    invoked = invoked_with(store)
    invoked.start([a_model_call()])
    assert isinstance(await invoked.result(), ModelAnswered)
    assert store.left == 0
    assert len(invoked.world.conversations) == 1
    await invoked.invoker.settled()
    assert invoked.results.empty()


async def test_a_store_that_stays_away_longer_than_the_call_may_take_leaves_it_to_the_lease() -> None:
    store = AwayStore(1_000)
    invoked = invoked_with(store)
    invoked.start([a_model_call(timeout_ms=1)])
    await invoked.invoker.settled()
    assert invoked.results.empty()
    assert store.left == 999, "not asked again: there is no time for it"
    assert invoked.world.conversations == []
