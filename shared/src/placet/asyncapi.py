"""Decides how the broker's open side is described: an AsyncAPI 3 document, made from topology, messages and events.

It says what outsiders may publish and what they may listen to. What services say to each other is none of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from placet import events
from placet.events import CloudEvent, EventData
from placet.machine import Receipt
from placet.messages import SubmitRun
from placet.signatures import PAYLOAD_TYPE, DecisionStatement, SignedEnvelope
from placet.topology import (
    DECIDE_KEY,
    DECISIONS_EXCHANGE,
    EVENTS_EXCHANGE,
    SUBMISSIONS_EXCHANGE,
    SUBMIT_KEY,
    Kind,
)

JSON = "application/json"
BINDING = "0.3.0"
_REF = "#/components/schemas/{model}"

_SIGNED = (
    "DSSE. `payload` is the exact bytes of a decision in base64; what is signed, with Ed25519, is DSSE's encoding of "
    "`payloadType` and these bytes. Exactly one signature, by a key that is registered under `keyid`."
)


def asyncapi_text(version: str) -> str:
    """The document as it stands in `deploy/asyncapi.json`."""
    return json.dumps(asyncapi_document(version), indent=2, ensure_ascii=False) + "\n"


def asyncapi_document(version: str) -> dict[str, Any]:
    """The document of this version."""
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Placet on RabbitMQ",
            "version": version,
            "description": "What outsiders may publish, and what they may listen to. Publish persistent, mandatory and "
            "with publisher confirms, and repeat with the same ids until there is an answer. Answers come to "
            "`amq.rabbitmq.reply-to`, on the channel that published.",
        },
        "defaultContentType": JSON,
        "channels": {**_doors(), **{_channel_of(event): _event_channel(event) for event in events.EVENTS}},
        "operations": {
            "submitRun": _receive("submissions", "A run is submitted; the answer is a receipt."),
            "decideApproval": _receive("decisions", "A reviewer decides; the answer is a receipt."),
            **{_operation_of(event): _send(event) for event in events.EVENTS},
        },
        "components": {
            "messages": {
                "submission": _message("A run to start.", "Submission", JSON),
                "decision": _message("A signed decision.", "SignedDecision", JSON),
                "receipt": _message("The answer.", "Receipt", JSON),
                **{_channel_of(event): _event_message(event) for event in events.EVENTS},
            },
            "schemas": _schemas(),
        },
    }


def _doors() -> dict[str, Any]:
    return {
        "submissions": _channel(SUBMIT_KEY, SUBMISSIONS_EXCHANGE, Kind.DIRECT, "submission"),
        "decisions": _channel(DECIDE_KEY, DECISIONS_EXCHANGE, Kind.DIRECT, "decision"),
        "receipts": {
            "address": None,
            "description": "The pseudo queue of whoever asked; `correlation_id` is that of the question.",
            "messages": {"receipt": {"$ref": "#/components/messages/receipt"}},
        },
    }


def _channel(address: str, exchange: str, kind: Kind, message: str) -> dict[str, Any]:
    return {
        "address": address,
        "messages": {message: {"$ref": f"#/components/messages/{message}"}},
        "bindings": {
            "amqp": {
                "is": "routingKey",
                "exchange": {"name": exchange, "type": kind.value, "durable": True, "autoDelete": False},
                "bindingVersion": BINDING,
            }
        },
    }


def _event_channel(event: type[EventData]) -> dict[str, Any]:
    return _channel(event.name, EVENTS_EXCHANGE, Kind.TOPIC, _channel_of(event))


def _receive(channel: str, summary: str) -> dict[str, Any]:
    return {
        "action": "receive",
        "summary": summary,
        "channel": {"$ref": f"#/channels/{channel}"},
        "reply": {
            "address": {"location": "$message.header#/reply_to"},
            "channel": {"$ref": "#/channels/receipts"},
        },
        "bindings": {"amqp": {"ack": True, "bindingVersion": BINDING}},
    }


def _send(event: type[EventData]) -> dict[str, Any]:
    return {
        "action": "send",
        "summary": _first_line(event),
        "channel": {"$ref": f"#/channels/{_channel_of(event)}"},
        "bindings": {"amqp": {"deliveryMode": 2, "mandatory": False, "bindingVersion": BINDING}},
    }


def _message(summary: str, schema: str, content_type: str) -> dict[str, Any]:
    return {"summary": summary, "contentType": content_type, "payload": {"$ref": _REF.format(model=schema)}}


def _event_message(event: type[EventData]) -> dict[str, Any]:
    framed = {
        "allOf": [
            {"$ref": _REF.format(model=CloudEvent.__name__)},
            {
                "properties": {
                    "type": {"const": events.type_of(event)},
                    "dataschema": {"const": events.schema_of(event)},
                    "data": {"$ref": _REF.format(model=event.__name__)},
                }
            },
        ]
    }
    return {"summary": _first_line(event), "contentType": events.CONTENT_TYPE, "payload": framed}


def _schemas() -> dict[str, Any]:
    models: tuple[type[BaseModel], ...] = (
        SubmitRun, SignedEnvelope, DecisionStatement, Receipt, CloudEvent, *events.EVENTS,
    )  # fmt: skip
    _, made = models_json_schema([(model, "validation") for model in models], ref_template=_REF)
    schemas: Mapping[str, Any] = made["$defs"]
    submission = {
        "title": "Submission",
        "type": "object",
        "required": ["v", "id", "message"],
        "additionalProperties": False,
        "properties": {
            "v": {"const": 1},
            "id": {"type": "string", "description": "Of this message; the same when it is repeated."},
            "message": {"$ref": _REF.format(model=SubmitRun.__name__)},
        },
    }
    named = {name: schema for name, schema in schemas.items() if name != SignedEnvelope.__name__}
    return {**named, "Submission": submission, "SignedDecision": _signed(schemas[SignedEnvelope.__name__])}


def _signed(envelope: Mapping[str, Any]) -> dict[str, Any]:
    """The envelope's own schema, with what its texts hold."""
    fields = envelope["properties"]
    payload = {
        **fields["payload"],
        "contentEncoding": "base64",
        "contentMediaType": PAYLOAD_TYPE,
        "contentSchema": {"$ref": _REF.format(model=DecisionStatement.__name__)},
    }
    kind = {**fields["payloadType"], "const": PAYLOAD_TYPE}
    described = {**fields, "payload": payload, "payloadType": kind}
    return {**envelope, "title": "SignedDecision", "description": _SIGNED, "properties": described}


def _first_line(event: type[EventData]) -> str:
    return (event.__doc__ or "").partition("\n")[0]


def _channel_of(event: type[EventData]) -> str:
    return event.__name__[0].lower() + event.__name__[1:]


def _operation_of(event: type[EventData]) -> str:
    return f"tell{event.__name__}"
