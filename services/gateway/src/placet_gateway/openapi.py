"""Decides what the OpenAPI document says beyond what the routes' types say: bodies, and that errors are problems."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from placet_gateway.problems import MEDIA_TYPE

_PROBLEM: dict[str, Any] = {
    "title": "Problem",
    "description": "RFC 9457. `code` is stable; `final` says whether asking again can change the answer; `pointer` is "
    "RFC 6901, into the body; `receipt` is what the machines answered, with the winner of a conflict.",
    "type": "object",
    "required": ["type", "title", "status", "detail", "code", "final"],
    "properties": {
        "type": {"type": "string", "format": "uri"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "code": {"type": "string"},
        "final": {"type": "boolean"},
        "pointer": {"type": "string"},
        "receipt": {"$ref": "#/components/schemas/Receipt"},
    },
}
_REF = "#/components/schemas/{model}"


def install(app: FastAPI, bodies: tuple[type[BaseModel], ...]) -> None:
    """Serve the document at `/v1/openapi.json` with the models of bodies that the routes read themselves."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            made = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
            _, schemas = models_json_schema([(body, "validation") for body in bodies], ref_template=_REF)
            components = made.setdefault("components", {}).setdefault("schemas", {})
            components.update(schemas.get("$defs", {}))
            components["Problem"] = _PROBLEM
            for unused in ("HTTPValidationError", "ValidationError"):
                components.pop(unused, None)
            for path in made["paths"].values():
                for operation in path.values():
                    _say_problems(operation)
            app.openapi_schema = made
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def _say_problems(operation: dict[str, Any]) -> None:
    responses = operation["responses"]
    responses.pop("422", None)
    responses["default"] = {
        "description": "Refused, or not known: a problem",
        "content": {MEDIA_TYPE: {"schema": {"$ref": _REF.format(model="Problem")}}},
    }
