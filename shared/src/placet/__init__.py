"""Decides which names an author types. Importing the package is light; each name is loaded when it is first used."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from placet.application import App
    from placet.errors import Code, ContractError, PlacetError
    from placet.filerefs import FileRef
    from placet.gates import Allow, Deny, Suspend
    from placet.human import ask_human
    from placet.plans import PlannedTask
    from placet.retries import RetryPolicy
    from placet.script import scripted
    from placet.tooling import Executed, Failed, NotExecuted, ToolContext, ToolError, Unsure

__all__ = [
    "Allow",
    "App",
    "Code",
    "ContractError",
    "Deny",
    "Executed",
    "Failed",
    "FileRef",
    "NotExecuted",
    "PlacetError",
    "PlannedTask",
    "RetryPolicy",
    "Suspend",
    "ToolContext",
    "ToolError",
    "Unsure",
    "ask_human",
    "scripted",
]


def __getattr__(name: str) -> object:
    """The name from the module that holds it. The approval service imports the package and none of the application."""
    if name == "App":
        from placet import application

        return application.App
    if name in ("Allow", "Deny", "Suspend"):
        from placet import gates

        return getattr(gates, name)
    if name in ("Code", "ContractError", "PlacetError"):
        from placet import errors

        return getattr(errors, name)
    if name == "FileRef":
        from placet import filerefs

        return filerefs.FileRef
    if name in ("Executed", "Failed", "NotExecuted", "ToolContext", "ToolError", "Unsure"):
        from placet import tooling

        return getattr(tooling, name)
    if name == "ask_human":
        from placet import human

        return human.ask_human
    if name == "PlannedTask":
        from placet import plans

        return plans.PlannedTask
    if name == "RetryPolicy":
        from placet import retries

        return retries.RetryPolicy
    if name == "scripted":
        from placet import script

        return script.scripted
    raise AttributeError(f"module 'placet' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
