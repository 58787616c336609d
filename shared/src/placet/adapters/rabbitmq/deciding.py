"""Decides what an outsider may decide on the queue: exactly what a registered key has signed, and nothing by the way.

Cheap first, and no store is touched (case S31): size → properties → strict form → known key → signature → what the key
may say. The rules verify all of it again, whatever queue a decision came by.
"""

from __future__ import annotations

from placet.adapters.rabbitmq.submitting import check_properties, return_address
from placet.adapters.rabbitmq.wire import JSON, Incoming
from placet.believing import believed
from placet.errors import Code, ContractError
from placet.ids import derived_id
from placet.keys import Keys
from placet.messages import Envelope
from placet.signatures import message_of, open_envelope, split_value
from placet.topology import DECIDE_KEY, DECISIONS_EXCHANGE


class DecisionDoor:
    """Opens what outsiders publish to the exchange for decisions."""

    def __init__(self, environment: str, keys: Keys) -> None:
        """`environment`: the installation for which a decision must have been signed."""
        self._environment = environment
        self._keys = keys

    async def open(self, message: Incoming) -> Envelope:
        """The decision that was signed, with the answer's way back. Who publishes it does not matter: who signed does.

        Raises ContractError: TOO_LARGE, MESSAGE_INVALID, JSON_*, SIGNATURE_INVALID, SIGNATURE_MISMATCH. Whether it is
        in its time is for the rules to say, by the store's clock.
        """
        check_properties(message, DECISIONS_EXCHANGE, DECIDE_KEY)
        if message.content_type not in ("", JSON):
            told = f"one signed decision as {JSON} is taken here, not {message.content_type}"
            raise ContractError(Code.MESSAGE_INVALID, told)
        published = _text(message.body)
        signed, value_text = split_value(published)
        opened = open_envelope(signed)
        key = self._keys.key(opened.keyid)
        statement = believed(opened.verified(key) if key else None, key, opened.keyid, self._environment, None)
        return Envelope(
            id=derived_id("msg", "decision", published),
            reply_to=return_address(message),
            message=message_of(statement, signed, value_text),
        )


def _text(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise ContractError(Code.JSON_TEXT, f"not UTF-8 at byte {error.start}: {error.reason}") from None
