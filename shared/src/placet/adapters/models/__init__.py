"""Models of all providers, by one request of pydantic-ai each; scripts go the same way."""

from placet.adapters.models.caller import ModelAccess, ModelCaller

__all__ = ["ModelAccess", "ModelCaller"]
