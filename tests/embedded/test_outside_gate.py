"""Proves that one process for everything asks a gate over the network, and goes on with what it says."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from placet import App, ToolContext, scripted
from placet.ids import Address
from placet.messages import RUN, SubmitRun
from placet.plans import DirectCall, PlannedTask
from placet.runtime.scripts import ScriptedModels
from placet.values import Principal, PrincipalKind
from placet_embedded.embedded import Embedded

PATIENCE_S = 20


async def test_a_call_is_made_once_the_gate_over_the_network_has_allowed_it(tmp_path: Path) -> None:
    asked: list[dict[str, Any]] = []
    sent: list[int] = []

    async def gate(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if b"content-length" in line)
        asked.append(json.loads(await reader.readexactly(length)))
        body = b'{"verdict":"allow","version":"7"}'
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body) + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(gate, "127.0.0.1", 0)
    app = App("desk", version="1")

    @app.tool(effect="idempotent", consequential=True)
    async def send(ctx: ToolContext, cents: int) -> str:
        """Send money."""
        sent.append(cents)
        return "sent"

    app.http_gate(
        "fraud", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/fraud", tools=[send], on_error="deny"
    )
    app.team("desk", agents=[app.agent("clerk", model=scripted("Done."), tools=[send])])
    embedded = await Embedded.start(app, tmp_path, models=ScriptedModels(app))
    try:
        task = PlannedTask(id="t", title="Send", call=DirectCall(tool="send", input={"cents": 5}))
        who = Principal(kind=PrincipalKind.HUMAN, id="alice")
        submission = SubmitRun(tenant="default", run_id="r1", team="desk", mode="tasks", tasks=(task,), initiator=who)
        changes = embedded.door.changes("r1")
        first = asyncio.ensure_future(anext(changes))  # from now on no hint is missed
        await embedded.door.ask(submission, message_id="m1", timeout_ms=5_000)
        async with asyncio.timeout(PATIENCE_S):
            await first
            while (await embedded.store.state("default", Address("r1", RUN, "")) or {}).get("status") != "succeeded":
                await anext(changes)
        [row] = await embedded.store.rows("default", "operation", "r1")
    finally:
        await embedded.stop()
        server.close()
    assert (sent, [each["subject"]["input"] for each in asked]) == ([5], [{"cents": 5}])
    assert (row["rule"], row["authority"]) == ("fraud@7", "policy")
