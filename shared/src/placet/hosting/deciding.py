"""Decides whom a process believes that takes decisions: registered keys, looked up in one registry by door and rules.

The libraries of signatures are imported here alone: a service that takes no decisions does without them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from placet.adapters.rabbitmq import Opener
from placet.hosting.watched_keys import WatchedKeys, keys_of
from placet.settings import Settings
from placet.voices import Voices

log = logging.getLogger("placet.hosting")


@dataclass(frozen=True, slots=True)
class Deciding:
    """The registry, and who asks it."""

    keys: WatchedKeys
    voices: Voices
    """For the rules."""
    opener: Opener
    """For the queue that outsiders write to."""


def deciding(settings: Settings, environ: Mapping[str, str]) -> Deciding:
    """As it is set. Raises TerminalError(SETTING_INVALID) for a registry that cannot be read."""
    from placet.adapters.rabbitmq.deciding import DecisionDoor
    from placet.believing import SignedVoices

    keys = keys_of(settings, environ)
    log.info("check.ok", extra={"check": "decision keys", "keys": len(keys)})
    return Deciding(keys, SignedVoices(settings.environment, keys), DecisionDoor(settings.environment, keys).open)
