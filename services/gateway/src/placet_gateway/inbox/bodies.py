"""Decides how a form of our own pages is read: bounded, of one encoding, and only with the session's own token."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlsplit

from fastapi import Request

from placet.errors import Code, ContractError
from placet_gateway.bodies import bytes_of
from placet_gateway.inbox.sessions import Session

FIELDS_MAX = 2_000
FORM_TYPE = "application/x-www-form-urlencoded"
CSRF = "csrf"


class Form:
    """The fields of a form, each as often as it was sent."""

    def __init__(self, pairs: list[tuple[str, str]]) -> None:
        self._fields: dict[str, list[str]] = {}
        for name, value in pairs:
            # Browsers write line ends of text areas as CR LF; nobody has typed those.
            self._fields.setdefault(name, []).append(value.replace("\r\n", "\n"))

    def one(self, name: str) -> str:
        """The last value; empty where there is none."""
        return self._fields.get(name, [""])[-1]

    def all(self, name: str) -> list[str]:
        """Every value."""
        return list(self._fields.get(name, ()))

    def __contains__(self, name: str) -> bool:
        return name in self._fields

    def items(self) -> list[tuple[str, str]]:
        """Every pair."""
        return [(name, value) for name, values in self._fields.items() for value in values]


async def form_of(request: Request) -> Form:
    """The form that was sent by a page of ours.

    Raises ContractError: ORIGIN_NOT_ALLOWED where nothing says that it comes from one, MEDIA_TYPE_UNSUPPORTED,
    TOO_LARGE, REQUEST_TOO_SLOW, PARAMETER_INVALID.
    """
    _require_own_page(request)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != FORM_TYPE:
        raise ContractError(Code.MEDIA_TYPE_UNSUPPORTED, f"the form must be {FORM_TYPE}")
    data = await bytes_of(request)
    try:
        pairs = parse_qsl(
            data.decode("ascii"), keep_blank_values=True, encoding="utf-8", errors="strict", max_num_fields=FIELDS_MAX
        )
    except (ValueError, UnicodeError) as error:
        raise ContractError(Code.PARAMETER_INVALID, "the form cannot be read") from error
    return Form(pairs)


def _require_own_page(request: Request) -> None:
    """The guard refuses what says that it comes from elsewhere; a form must say that it does not."""
    origin = request.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc.lower() == request.headers.get("host", "").lower():
        return
    if origin is None and request.headers.get("sec-fetch-site") == "same-origin":
        return
    raise ContractError(Code.ORIGIN_NOT_ALLOWED, "this form does not say that it was sent by a page of this server")


def require_token(form: Form, session: Session) -> None:
    """Raises ContractError(ORIGIN_NOT_ALLOWED) for a form that no page of the session has made."""
    if not session.has_given(form.one(CSRF), CSRF):
        told = "this form was made by another session: load the page anew and send it again"
        raise ContractError(Code.ORIGIN_NOT_ALLOWED, told)
