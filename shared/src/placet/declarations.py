"""Decides what may be declared as a tool or an agent, and how a mistake in a declaration is told: in one line."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Concatenate, Generic, Literal, ParamSpec, TypeVar

from pydantic import TypeAdapter, ValidationError

from placet import limits
from placet.calls import EffectClass, ToolSpec
from placet.canonical import digest
from placet.errors import Code, ContractError
from placet.plans import PLAN_TOOL
from placet.policy import BOUNDARIES
from placet.retries import RetryPolicy
from placet.schemas import ToolInput
from placet.script import Script
from placet.tooling import ToolContext
from placet.topology import POOL_NAMES, is_pool
from placet.values import Name

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])

EffectName = Literal["read_only", "idempotent", "reconcilable", "non_retriable"]
BoundaryName = Literal["tool_call", "plan", "round", "dispatch"]
_NAME: TypeAdapter[str] = TypeAdapter(Name)
_TOOL_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
"""What every model provider takes as the name of a function."""
_MODEL_NAME = re.compile(r"[a-z][a-z0-9/_-]*:\S+")
_DURATION_S_MAX = 10 * 366 * 24 * 3_600


def invalid(what: str) -> ContractError:
    """The one error of a wrong declaration."""
    return ContractError(Code.APP_INVALID, what)


class Tool(Generic[P, R]):
    """A registered tool. Calling it calls the function, as a test of the tool does."""

    def __init__(
        self,
        function: Callable[Concatenate[ToolContext, P], R],
        takes: ToolInput,
        spec: ToolSpec,
        ensure_open: Callable[[str], None],
    ) -> None:
        self.function = function
        self.input = takes
        self.name = spec.name
        self.description = inspect.getdoc(function) or ""
        """For the model: the function's docstring."""
        self.reconciler: Callable[..., Any] | None = None
        self.sealer: Callable[..., Any] | None = None
        self._spec = spec
        self._ensure_open = ensure_open

    def __call__(self, ctx: ToolContext, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(ctx, *args, **kwargs)

    def __repr__(self) -> str:
        return f"<tool {self.name}: {self._spec.effect.value}>"

    @property
    def spec(self) -> ToolSpec:
        """What the rules know of it."""
        return self._spec.model_copy(
            update={"can_reconcile": self.reconciler is not None, "can_seal": self.sealer is not None}
        )

    def reconcile(self, function: F) -> F:
        """Register the probe: given the same input, did the effect of this operation happen? It changes nothing."""
        self._check_probe("reconcile", self.reconciler, function)
        self.reconciler = function
        return function

    def seal(self, function: F) -> F:
        """Register the seal: as `reconcile`, and if it did not happen, see to it that it never will.

        The tool then gets an idempotency key of its own for each attempt, which is what the seal shuts out.
        """
        self._check_probe("seal", self.sealer, function)
        self.sealer = function
        return function

    def _check_probe(self, what: str, earlier: object, function: Callable[..., Any]) -> None:
        self._ensure_open(f"the {what} of tool {self.name!r}")
        if earlier is not None:
            raise invalid(f"tool {self.name!r} has a {what} already")
        if self._spec.effect is not EffectClass.RECONCILABLE:
            raise invalid(
                f"tool {self.name!r} is {self._spec.effect.value}: only a reconcilable tool is asked what happened"
            )
        check_function(f"the {what} of tool {self.name!r}", function)
        parameters = list(inspect.signature(function).parameters)
        for name in parameters[1:]:
            if name not in self.input.names:
                raise invalid(f"the {what} of tool {self.name!r} takes {name!r}, which is no parameter of the tool")
        if not parameters:
            raise invalid(f"the {what} of tool {self.name!r} must take `ctx: ToolContext` first")


AnyTool = Tool[Any, Any]


@dataclass(frozen=True, slots=True)
class Agent:
    """A registered agent: a model, what it is told, and the tools it is granted."""

    name: str
    model: str | Script
    instructions: str
    tools: tuple[str, ...]
    timeout_ms: int = limits.MODEL_TIMEOUT_MS
    """How long one model call may take."""


def make_tool(
    function: Callable[..., Any],
    ensure_open: Callable[[str], None],
    *,
    name: str | None,
    effect: str,
    consequential: bool,
    timeout_s: float,
    version: str | None,
    retry: RetryPolicy | int,
    quiescence_s: float | None,
    pool: str = "",
) -> AnyTool:
    """The tool, or the first thing that is wrong with it."""
    own = name or str(getattr(function, "__name__", ""))
    if not _TOOL_NAME.fullmatch(own) or own == PLAN_TOOL:
        raise invalid(f"a tool cannot be called {own!r}: models take letters, digits, _ and -, at most 64")
    check_function(f"tool {own!r}", function)
    takes = ToolInput(own, function)
    if quiescence_s is not None and effect != EffectClass.RECONCILABLE:
        raise invalid(f"tool {own!r} is {effect}: quiescence_s is for reconcilable tools")
    timeout_ms = duration_ms(timeout_s, f"timeout_s of tool {own!r}")
    if type(consequential) is not bool:
        raise invalid(f"consequential of tool {own!r} is True or False, not {consequential!r}")
    spec = ToolSpec(
        name=own,
        version=check_name(version, f"the version of tool {own!r}") if version else digest([own, takes.schema])[:12],
        schema_digest=takes.schema_digest,
        effect=EffectClass(effect),
        consequential=consequential,
        timeout_ms=timeout_ms,
        retry=_retry_policy(retry, own),
        quiescence_ms=_quiescence_ms(own, effect, quiescence_s, timeout_ms),
        pool=_pool(own, pool),
    )
    return Tool(function, takes, spec, ensure_open)


def _pool(tool: str, pool: object) -> str:
    if pool != "" and not (isinstance(pool, str) and is_pool(pool)):
        raise invalid(f"pool of tool {tool!r} is {POOL_NAMES}, not {pool!r}")
    return str(pool)


def _quiescence_ms(tool: str, effect: str, quiescence_s: float | None, timeout_ms: int) -> int:
    """A tool that does not say is taken to be as slow as it may be."""
    if effect != EffectClass.RECONCILABLE or quiescence_s == 0:
        return 0
    return timeout_ms if quiescence_s is None else duration_ms(quiescence_s, f"quiescence_s of tool {tool!r}")


def make_agent(name: str, model: object, instructions: str, tools: Sequence[AnyTool | str], timeout_s: float) -> Agent:
    """The agent, or the first thing that is wrong with it."""
    if not isinstance(model, Script) and not (isinstance(model, str) and _MODEL_NAME.fullmatch(model)):
        raise invalid(f"agent {name!r}: model is `provider:model` or scripted(…), not {model!r}")
    if not isinstance(instructions, str):
        raise invalid(f"agent {name!r}: instructions is text")
    timeout_ms = duration_ms(timeout_s, f"timeout_s of agent {name!r}")
    return Agent(name, model, instructions, names_of(tools, f"the tools of agent {name!r}"), timeout_ms)


def check_gate(name: str, function: Callable[..., Any]) -> None:
    """A gate is a plain function of one subject."""
    check_function(f"gate {name!r}", function)
    if is_coroutine(function):
        raise invalid(f"gate {name!r} is `async def`: a gate is a plain `def`, which decides and waits for nothing")
    try:
        inspect.signature(function).bind(object())
    except (TypeError, ValueError):
        raise invalid(f"gate {name!r} must take exactly one argument, the subject it judges") from None


def check_boundary(boundary: str) -> None:
    """Where a gate can stand."""
    if boundary not in list(BOUNDARIES):
        raise invalid(f"a gate stands at one of {', '.join(BOUNDARIES)}, not at {boundary!r}")


def check_function(what: str, function: object) -> None:
    """Neither a class nor a generator."""
    if not callable(function) or isinstance(function, type):
        raise invalid(f"{what} must be a function")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise invalid(f"{what} yields: return one result instead")


def is_coroutine(function: Callable[..., Any]) -> bool:
    """Whether calling it gives a coroutine, also for an object that is called."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def names_of(things: object, what: str) -> tuple[str, ...]:
    """The names in a list of registered things or names, each once."""
    if isinstance(things, str) or not isinstance(things, Sequence):
        raise invalid(f"{what}: a list is needed, not {things!r}")
    names = tuple(thing if isinstance(thing, str) else getattr(thing, "name", repr(thing)) for thing in things)
    for at, name in enumerate(names):
        if name in names[:at]:
            raise invalid(f"{what}: {name!r} stands there twice")
    return names


def check_name(name: object, what: str) -> str:
    """A name as all names are."""
    try:
        return _NAME.validate_python(name, strict=True)
    except ValidationError:
        wanted = f"one line of text of at most {limits.NAME_CHARS_MAX} characters"
        raise invalid(f"{what} is {wanted}, not {name!r}") from None


def duration_ms(value_s: object, what: str) -> int:
    """Seconds as whole milliseconds."""
    if isinstance(value_s, bool) or not isinstance(value_s, int | float) or not 0.001 <= value_s <= _DURATION_S_MAX:
        raise invalid(f"{what} is a number of seconds above 0, not {value_s!r}")
    return round(value_s * 1_000)


def check_count(value: object, what: str) -> int:
    """A whole number of at least one."""
    if type(value) is not int or value < 1:
        raise invalid(f"{what} is a whole number of at least 1, not {value!r}")
    return value


def _retry_policy(retry: RetryPolicy | int, tool: str) -> RetryPolicy:
    if isinstance(retry, RetryPolicy):
        return retry
    what = f"retry of tool {tool!r}"
    if check_count(retry, what) > limits.ATTEMPTS_MAX:
        raise invalid(f"{what}: at most {limits.ATTEMPTS_MAX} attempts, not {retry}")
    return RetryPolicy(attempts_max=retry)
