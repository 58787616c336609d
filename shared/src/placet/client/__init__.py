"""What programs import to reach a gateway: typed verbs, blocking or asynchronous; refusals are PlacetErrors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from placet.client.blocking import PlacetClient
from placet.client.connection import Connection

if TYPE_CHECKING:
    from placet.client.asynchronous import AsyncPlacetClient

__all__ = ["AsyncPlacetClient", "Connection", "PlacetClient"]


def __getattr__(name: str) -> object:
    # The command line needs only one of the two, and to start fast.
    if name == "AsyncPlacetClient":
        from placet.client.asynchronous import AsyncPlacetClient

        return AsyncPlacetClient
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
