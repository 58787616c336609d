"""Decides what else a page is made of: style sheet, scripts and icon, files of ours under names that change with them.

Nothing comes from elsewhere, and nothing stands in a page itself: the policy that goes with each page allows neither.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import NamedTuple

from fastapi import APIRouter
from fastapi.responses import Response
from starlette.exceptions import HTTPException

router = APIRouter(prefix="/inbox/static", include_in_schema=False)

_FOLDER = Path(__file__).parent / "static"
_KINDS = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml",
          ".txt": "text/plain; charset=utf-8"}  # fmt: skip
_FOR_EVER = "public, max-age=31536000, immutable"


class Asset(NamedTuple):
    """One file."""

    data: bytes
    kind: str
    digest: str


@cache
def assets() -> dict[str, Asset]:
    """All of them by name; read once."""
    found: dict[str, Asset] = {}
    for path in sorted(_FOLDER.iterdir()):
        data = path.read_bytes()
        found[path.name] = Asset(data, _KINDS[path.suffix], hashlib.sha256(data).hexdigest()[:16])
    return found


def url_of(name: str) -> str:
    """Where a page finds a file. KeyError for one that there is not."""
    return f"/inbox/static/{name}?v={assets()[name].digest}"


@router.get("/{name}")
async def asset(name: str, v: str | None = None) -> Response:
    """One file; for ever where its digest is asked for."""
    found = assets().get(name)
    if found is None:
        raise HTTPException(404)
    headers = {"Cache-Control": _FOR_EVER} if v == found.digest else {}
    return Response(found.data, 200, headers, found.kind)
