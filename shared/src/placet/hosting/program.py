"""Decides how a service starts and ends as a process: settings, logs, signals, exit code.

    python -m placet_dispatcher [--role resume] [--check]

The first SIGTERM (or SIGINT) drains; a second one ends at once, which loses nothing that was promised.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import logging
import os
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from placet.errors import PlacetError, RetryableError
from placet.hosting import exits, logs
from placet.hosting.parts import PACKAGES, Parts
from placet.hosting.serving import needed_by, serve
from placet.runtime.process import calm_collector
from placet.settings import Finding, Settings, missing, parse_settings, variable_of

log = logging.getLogger("placet.hosting")

Body = Callable[[Settings, asyncio.Event], Awaitable[int]]
"""The life of a process: it ends soon after the event is set, and gives the exit code."""


def main(parts: Parts, argv: Sequence[str] | None = None) -> int:
    """Host a service, or what PLACET_HOSTS names, until it is told to end; the exit code."""
    options = _options(parts, argv)
    role = options.role or parts.queues[0]

    def queues(settings: Settings) -> tuple[str, ...]:
        return tuple(settings.hosts) or (role,)

    async def body(settings: Settings, ending: asyncio.Event) -> int:
        return await serve(parts, queues(settings), settings, ending, check_only=options.check)

    def name(settings: Settings) -> str:
        return "+".join(queues(settings))

    def wrong(settings: Settings) -> Sequence[Finding]:
        if not settings.hosts or options.role is None:
            return ()
        what = f"it names the queues that are served here, so --role {options.role} says nothing: leave out one of both"
        return (Finding(True, variable_of("hosts"), what),)

    return run_process(name, lambda settings: needed_by(parts, queues(settings)), body, wrong=wrong, fallback=role)


def _options(parts: Parts, argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=f"python -m {PACKAGES[parts.queues[0]]}",
        description=f"Placet's {parts.service}. It is set up by PLACET_* variables; see deploy/env.example.",
    )
    parser.add_argument("--check", action="store_true", help="look whether everything needed is there, and end")
    if len(parts.queues) > 1:
        parser.add_argument("--role", choices=parts.queues, help=f"which queue it serves (default: {parts.queues[0]})")
    else:
        parser.set_defaults(role=None)
    return parser.parse_args(argv)


def run_process(
    name: str | Callable[[Settings], str],
    needed: Callable[[Settings], Mapping[str, str]],
    body: Body,
    *,
    wrong: Callable[[Settings], Sequence[Finding]] = lambda settings: (),
    fallback: str = "",
) -> int:
    """Read the settings, start logging, and live until told to end. Everything wrong is one line with what to do.

    `name`: what its log lines call it, which may follow from its settings; `fallback` where those cannot be read.
    `wrong`: what does not fit together besides.
    """
    settings, findings = parse_settings(os.environ, _read)
    text = os.environ.get("PLACET_LOG_FORMAT") == "text"
    called = name if isinstance(name, str) else name(settings) if settings is not None else fallback
    logs.set_up(called, settings or Settings(log_format="text" if text else "json"))
    if settings is not None:
        findings += (*missing(settings, needed(settings)), *wrong(settings))
    for finding in findings:
        log.log(
            logging.ERROR if finding.fatal else logging.WARNING,
            "setting.wrong" if finding.fatal else "setting.unknown",
            extra={"variable": finding.variable, "what": finding.message},
        )
    if settings is None or any(finding.fatal for finding in findings):
        return exits.WRONG
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(_live(settings, body))
    except RetryableError as error:
        log.error("service.unavailable", extra={"code": error.code.value, "what": error.message})
        return exits.UNAVAILABLE
    except PlacetError as error:
        log.error("service.wrong", extra={"code": error.code.value, "what": error.message})
        return exits.WRONG
    except Exception:
        log.exception("service.defect")
        return exits.DEFECT


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The faster event loop where it is installed. It has no Windows; the library's own works as well everywhere."""
    try:
        uvloop = importlib.import_module("uvloop")
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


async def _live(settings: Settings, body: Body) -> int:
    ending = asyncio.Event()
    loop = asyncio.get_running_loop()

    def end(number: int) -> None:
        if ending.is_set():
            logging.shutdown()
            os._exit(exits.SIGNALLED + number)  # at once: what was promised is committed, the rest comes again
        log.info("service.told_to_end", extra={"signal": signal.Signals(number).name})
        ending.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end, number)
    calm_collector()
    return await body(settings, ending)


def _read(path: str) -> str:
    return Path(path).read_text(encoding="utf-8")
