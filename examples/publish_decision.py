"""Approve a request by a message on the queue, signed with your own key (`placet keys new`).

    AMQP_URL=amqp://… python -m examples.publish_decision KEY_FILE ENVIRONMENT RUN REQUEST HASH

The hash is that of what you have seen. Run it again with the same arguments as often as you like: it is one decision.
"""

import asyncio
import os
import sys
from pathlib import Path

from placet.client.queue import DecisionPublisher
from placet.keys import parse_private_key
from placet.signatures import SigningKey


async def approve(key: SigningKey, environment: str, run_id: str, request_id: str, seen_hash: str) -> None:
    """Publish, and tell what became of it."""
    async with DecisionPublisher(os.environ["AMQP_URL"], key, environment=environment) as publisher:
        receipt = await publisher.decide(
            request_id, run_id=run_id, decision="approve", request_hash=seen_hash, decision_id=f"approve-{request_id}"
        )
    print(receipt.answer, receipt.outcome, receipt.decided_by)


if __name__ == "__main__":
    key_file, *where = sys.argv[1:]
    asyncio.run(approve(SigningKey.of(parse_private_key(Path(key_file).read_bytes())), *where))
