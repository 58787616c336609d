"""What programs import to reach a gateway: typed verbs, blocking or asynchronous; refusals are PlacetErrors."""

from __future__ import annotations

from placet.client.asynchronous import AsyncPlacetClient
from placet.client.blocking import PlacetClient
from placet.client.connection import Connection

__all__ = ["AsyncPlacetClient", "Connection", "PlacetClient"]
