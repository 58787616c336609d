"""Decides how an application is found by its import string, `package.module:attribute`, and what is said if it is not.

Importing runs the author's code; only processes that host the application do it, never the approval service.
"""

from __future__ import annotations

import importlib
import re
import sys
import traceback
from pathlib import Path
from types import ModuleType

from placet.application import App
from placet.errors import Code, ContractError

_IMPORT_STRING = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_OURS = str(Path(__file__).resolve().parents[1])


def load_app(text: str, *, folder: Path | None = None) -> App:
    """The application that `text` names, closed and checked.

    `folder` (by default the current one) is searched first, as `python -m` would. Raises ContractError(APP_INVALID)
    with one line: wrong form, no such module, an exception in it and where, no such attribute, no App, or what is
    wrong with the App.
    """
    if not _IMPORT_STRING.fullmatch(text):
        raise _refuse(f"an application is named like package.module:attribute, not {text!r}")
    name, _, attribute = text.partition(":")
    found: object = _import(name, str((folder or Path.cwd()).resolve()))
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise _refuse(f"{name} has no {attribute!r}{_suggestion(name)}")
        found = getattr(found, part)
    if not isinstance(found, App):
        raise _refuse(f"{text} is {_kind(found)}, not a placet.App{_suggestion(name)}")
    found.check()
    return found


def _import(name: str, folder: str) -> ModuleType:
    if folder not in sys.path:
        sys.path.insert(0, folder)
    importlib.invalidate_caches()  # a file may have been written a moment ago
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise _refuse(f"there is no module {error.name!r} in {folder} or on Python's path") from error
        raise _refuse(_told(name, error, folder)) from error
    except ContractError as error:
        raise ContractError(error.code, _told(name, error, folder), pointer=error.pointer) from error
    except (Exception, SystemExit) as error:
        raise _refuse(_told(name, error, folder)) from error


def _told(name: str, error: BaseException, folder: str) -> str:
    where = _where(error, folder)
    what = str(error).strip().partition("\n")[0]
    shown = what if isinstance(error, ContractError) else f"{type(error).__name__}: {what}".removesuffix(": ")
    return f"importing {name} failed{f' at {where}' if where else ''}: {shown}"


def _where(error: BaseException, folder: str) -> str | None:
    """File and line of the author's code: the innermost place in the folder; else outside the import machinery."""
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{_short(error.filename, folder)}:{error.lineno}"
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(("<frozen", _OURS)) and "importlib" not in Path(frame.filename).parts
    ]
    own = [
        frame
        for frame in frames
        if Path(frame.filename).is_relative_to(folder) and "site-packages" not in frame.filename
    ]
    for frame in (own or frames)[-1:]:
        return f"{_short(frame.filename, folder)}:{frame.lineno}"
    return None


def _short(filename: str, folder: str) -> str:
    path = Path(filename)
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else filename


def _suggestion(name: str) -> str:
    apps = [f"{name}:{key}" for key, value in vars(sys.modules[name]).items() if isinstance(value, App)]
    return f"; is it {' or '.join(apps)}?" if apps else ""


def _kind(value: object) -> str:
    return "a function" if callable(value) and not isinstance(value, type) else f"of type {type(value).__name__}"


def _refuse(what: str) -> ContractError:
    return ContractError(Code.APP_INVALID, what)
