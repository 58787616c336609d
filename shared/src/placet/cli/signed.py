"""Decides how a command decides without a gateway's word: signed with a person's own key, published on the queue."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

if TYPE_CHECKING:
    from placet.machine import Receipt
    from placet.messages import DecisionWord
    from placet.signatures import SigningKey
    from placet.strict_json import JsonValue

TIMEOUT_MS = 30_000
"""How long a person waits for a receipt before being told that the outcome is unknown."""

KeyFile = Annotated[
    str | None,
    typer.Option("--key", metavar="FILE", help="Your private key (`placet keys new`): sign, and publish on the queue."),
]
Amqp = Annotated[
    str | None,
    typer.Option(
        "--amqp",
        metavar="URL",
        help="With --key: the broker. Others on this machine see it; PLACET_AMQP_URL or …_FILE they do not.",
    ),
]
Environment = Annotated[
    str | None,
    typer.Option(help="With --key: the installation it counts for (PLACET_ENVIRONMENT, else development)."),
]
Tenant = Annotated[str | None, typer.Option(help="With --key: whose request it is (PLACET_TENANT, else default).")]
RunOption = Annotated[
    str | None,
    typer.Option("--run", metavar="RUN", help="With --key and --hash: the run, so that no gateway has to be asked."),
]


@dataclass(frozen=True, slots=True)
class Way:
    """The way of a signed decision. `run_id`: named by the person, who then needs no gateway."""

    key: SigningKey
    url: str
    environment: str
    tenant: str
    run_id: str | None

    def names(self) -> dict[str, str | None]:
        """What tells this decision from others, without a password."""
        parts = urlsplit(self.url)
        host = f"{parts.hostname}:{parts.port or 0}"
        return {
            "broker": f"{host}{parts.path}",
            "environment": self.environment,
            "tenant": self.tenant,
            "person": self.key.person,
        }

    def decide(
        self,
        request_id: str,
        run_id: str,
        word: DecisionWord,
        request_hash: str,
        decision_id: str,
        reason: str | None,
        value: JsonValue = None,
    ) -> Receipt:
        """As DecisionPublisher.decide."""
        import asyncio

        from placet.client.queue import DecisionPublisher

        async def publish() -> Receipt:
            publisher = DecisionPublisher(self.url, self.key, environment=self.environment, tenant=self.tenant)
            async with publisher:
                return await publisher.decide(
                    request_id,
                    run_id=run_id,
                    decision=word,
                    request_hash=request_hash,
                    decision_id=decision_id,
                    reason=reason,
                    value=value,
                    timeout_ms=TIMEOUT_MS,
                )

        return asyncio.run(publish())


def way_of(
    key_file: str | None,
    amqp: str | None,
    environment: str | None,
    tenant: str | None,
    run_id: str | None,
    person: str | None,
) -> Way | None:
    """The way that the options name; None without a key. Raises ContractError(PARAMETER_INVALID, SETTING_INVALID)."""
    from placet.errors import Code, ContractError

    if key_file is None:
        given = {"--amqp": amqp, "--environment": environment, "--tenant": tenant, "--run": run_id}
        if names := [name for name, value in given.items() if value is not None]:
            raise ContractError(Code.PARAMETER_INVALID, f"{' and '.join(names)}: only with --key, which signs")
        return None
    from placet.cli.deployment import settings
    from placet.cli.keys import read_key

    key = read_key(key_file)
    if key.person is None:
        raise ContractError(Code.PARAMETER_INVALID, f"{key_file} holds a gateway's key: sign with one of your own")
    if person is not None and person != key.person:
        raise ContractError(Code.PARAMETER_INVALID, f"--as {person}: the key in {key_file} is {key.person}'s")
    environ = dict(os.environ)
    if amqp is not None:
        environ.pop("PLACET_AMQP_URL_FILE", None)
        environ["PLACET_AMQP_URL"] = amqp
    found = settings("amqp_url", environ=environ)
    return Way(key, found.amqp_url or "", environment or found.environment, tenant or found.tenant, run_id)
