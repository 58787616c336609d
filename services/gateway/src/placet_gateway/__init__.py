"""The door for people and programs: HTTP in, messages and facts out. Owns nothing."""

from __future__ import annotations

from placet_gateway.app import gateway

__all__ = ["gateway"]
