"""Proves that of a thousand reviewers who decide one request at once, over HTTP and queue, one wins and all hear of it.

Half of them are at the gateway, each on a connection of its own; half publish what they have signed. The clients share
the machine with the system, so they are as plain as can be. How long the answers took is printed; nothing rests on it.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from placet.client.queue import DecisionPublisher
from placet.errors import Code, RetryableError, TerminalError
from placet.signatures import DecisionStatement, SigningKey
from placet.views import RequestView
from tests.live.crowd import Crowd
from tests.live.keyring import TENANT
from tests.live.whole import Servers, WholeSystem, whole_system

REVIEWERS = 1_000
PUBLISHERS = 4
"""Connections to the broker: a signed decision may travel on anybody's."""
AGAIN_S = 0.05
VALID_MS = 3_600_000


@dataclass(frozen=True)
class Answer:
    """What a reviewer was told in the end, and how long it took."""

    person: str
    code: str
    receipt: dict[str, Any]
    took_s: float


def word_of(number: int) -> str:
    """Not all are of one mind."""
    return "approve" if number % 3 else "reject"


async def until_final(person: str, ask: Callable[[], Awaitable[tuple[str, dict[str, Any]] | None]]) -> Answer:
    """The first final answer, asking again with the same decision id."""
    began_s = time.perf_counter()
    while True:
        said = await ask()
        if said is not None:
            return Answer(person, *said, time.perf_counter() - began_s)
        await asyncio.sleep(AGAIN_S)


# ── at the gateway ─────────────────────────────────────────────────────────────────────


class Browser:
    """One reviewer's kept connection."""

    def __init__(self, system: WholeSystem, shown: RequestView, number: int) -> None:
        self.person = f"p-{number}"
        self._port = system.http_port
        decision = {
            "decision": word_of(number),
            "request_hash": shown.request_hash,
            "decision_id": f"d-{number}",
        }
        body = json.dumps(decision).encode()
        head = (
            f"POST /v1/requests/{shown.request_id}/decisions HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\n"
            f"Authorization: Bearer {system.token}\r\nPlacet-Person: {self.person}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self._request = head.encode() + body

    async def open(self) -> None:
        """Connect."""
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)

    async def close(self) -> None:
        """Done."""
        self._writer.close()
        await self._writer.wait_closed()

    async def ask(self) -> tuple[str, dict[str, Any]] | None:
        """Code and receipt; None where the answer is not final."""
        self._writer.write(self._request)
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode().lower()
        size = next(line for line in head.split("\r\n") if line.startswith("content-length:"))
        body = json.loads(await self._reader.readexactly(int(size.partition(":")[2])))
        if head.split()[1] == "200":
            return "accepted", body
        return (body["code"], body.get("receipt", {})) if body["final"] else None


# ── on the queue ───────────────────────────────────────────────────────────────────────


class Signer:
    """One reviewer with a key, who publishes on a connection that others use as well."""

    def __init__(self, system: WholeSystem, shown: RequestView, number: int, key: SigningKey) -> None:
        self.person = f"p-{number}"
        self._decision_id = f"d-{number}"
        now_ms = time.time_ns() // 1_000_000
        statement = DecisionStatement(
            environment=system.settings["ENVIRONMENT"],
            tenant=TENANT,
            run_id=shown.run_id,
            request_id=shown.request_id,
            request_hash=shown.request_hash,
            decision=word_of(number),
            decision_id=self._decision_id,
            person=self.person,
            issued_at_ms=now_ms,
            not_after_ms=now_ms + VALID_MS,
        )
        self._signed = key.sign(statement)

    async def ask(self, publisher: DecisionPublisher) -> tuple[str, dict[str, Any]] | None:
        """As Browser."""
        try:
            receipt = await publisher.publish(self._signed, decision_id=self._decision_id)
        except TerminalError as error:
            return error.code.value, error.details["receipt"]
        except RetryableError:
            return None
        return "accepted", receipt.model_dump(mode="json")


async def all_decide(system: WholeSystem, shown: RequestView, keys: dict[int, SigningKey]) -> list[Answer]:
    """Everybody at once; everybody's final answer."""
    browsers = [Browser(system, shown, number) for number in range(REVIEWERS) if number not in keys]
    signers = [Signer(system, shown, number, key) for number, key in keys.items()]
    for browser in browsers:
        await browser.open()
    one = SigningKey.generate("whoever publishes")
    publishers = [DecisionPublisher(system.settings["AMQP_URL"], one) for _ in range(PUBLISHERS)]
    async with publishers[0], publishers[1], publishers[2], publishers[3]:
        answers = await asyncio.gather(
            *(until_final(browser.person, browser.ask) for browser in browsers),
            *(
                until_final(signer.person, partial(signer.ask, publishers[at % PUBLISHERS]))
                for at, signer in enumerate(signers)
            ),
        )
    for browser in browsers:
        await browser.close()
    return answers


async def test_of_a_thousand_reviewers_at_once_one_wins_and_everybody_is_told_the_truth(
    tmp_path: Path, amqp_url: str, postgres_url: str, redis_url: str, redis_prefix: str
) -> None:
    servers = Servers(amqp_url, postgres_url, redis_url)
    async with whole_system(tmp_path, servers, environment=redis_prefix) as system:
        keys = {number: SigningKey.generate(f"p-{number}") for number in range(0, REVIEWERS, 2)}
        system.keys.write(*system.keys.entries(), *(key.entry(tenants=(TENANT,)) for key in keys.values()))
        await asyncio.to_thread(system.start)
        async with Crowd(system) as crowd:
            crowd.may_decide.clear()
            await crowd.submit("r1")
            await crowd.reached(["r1"], {"suspended"})
            request = await asyncio.to_thread(system.request_of, "r1")
            with system.client("alice") as client:
                shown = client.request(request.request_id)
            answers = await all_decide(system, shown, keys)
            took_s = sorted(answer.took_s for answer in answers)
            print(f"{len(answers)} answers: half within {took_s[REVIEWERS // 2]:.2f} s, all within {took_s[-1]:.2f} s")

            found = Counter(answer.code for answer in answers)
            assert found == {"accepted": 1, Code.APPROVAL_CONFLICT.value: REVIEWERS - 1}, found
            (winner,) = [answer for answer in answers if answer.code == "accepted"]
            (outcome,) = await crowd.facts("SELECT outcome, decided_by, decision_id FROM approval_outcome")
            assert outcome["decided_by"] == winner.person
            assert outcome["decision_id"] == winner.person.replace("p-", "d-")
            for answer in answers:
                assert answer.receipt["decided_by"] == winner.person, answer
                assert answer.receipt["outcome"] == outcome["outcome"], answer
            votes = await crowd.facts("SELECT person_id FROM approval_vote")
            assert [vote["person_id"] for vote in votes] == [winner.person]
            (ended,) = (await crowd.ended(["r1"])).values()
            assert ended in {"succeeded", "rejected", "failed"}
            tagged = [effect for effect in system.ledger.of("r1") if effect.tool == "tag"]
            assert len(tagged) == (outcome["outcome"] == "approved"), "what was rejected does not happen"
            await crowd.assert_nothing_parked()
