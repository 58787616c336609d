"""Decides what may be declared as a tool or an agent, and how a mistake in a declaration is told: in one line."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Concatenate, Generic, Literal, ParamSpec, TypeVar, cast, get_args

from pydantic import TypeAdapter, ValidationError

from placet import limits
from placet.calls import Binding, EffectClass, ToolSpec
from placet.canonical import digest
from placet.errors import Code, ContractError
from placet.hash_scope import bound_schema
from placet.human import ask_human
from placet.plans import ASK_HUMAN, PLAN_TOOL
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
BoundaryName = Literal["tool_call", "plan", "round", "dispatch", "plan_patch"]
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
        self.preconditions: list[Callable[..., Any]] = []
        self.resolvers: dict[str, Callable[..., Any]] = {}
        """By the parameter whose value each must still give."""
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

    def precondition(self, function: F) -> F:
        """Register what must hold right before each attempt: given the same input, True, or False or why not (text).

        The executor asks it in the attempt itself, immediately before the tool. What does not hold any more ends the
        operation as not executed (PRECONDITION_FAILED) and is told to the model; it is not tried again.
        """
        what = f"the precondition {getattr(function, '__name__', '')!r} of tool {self.name!r}"
        self._ensure_open(what)
        self._check_hook(what, function)
        self.preconditions.append(function)
        return function

    def resolve(self, parameter: str) -> Callable[[F], F]:
        """Register what a parameter's value is looked up by: `@deploy.resolve("host_id")` over `def host(ctx, name)`.

        The executor looks it up anew right before each attempt. Unless that gives the reviewed value, the name points
        elsewhere by now: not executed (APPROVAL_STALE_DECISION), told to the model, and not tried again.
        """
        what = f"the resolve of {parameter!r} of tool {self.name!r}"
        self._ensure_open(what)
        if parameter not in self.input.names:
            raise invalid(f"{what}: the tool has no parameter {parameter!r}")
        if parameter in self.resolvers:
            raise invalid(f"{what} is there already")

        def register(function: F) -> F:
            self._check_hook(what, function)
            self.resolvers[parameter] = function
            return function

        return register

    def _check_probe(self, what: str, earlier: object, function: Callable[..., Any]) -> None:
        self._ensure_open(f"the {what} of tool {self.name!r}")
        if earlier is not None:
            raise invalid(f"tool {self.name!r} has a {what} already")
        if self._spec.effect is not EffectClass.RECONCILABLE:
            raise invalid(
                f"tool {self.name!r} is {self._spec.effect.value}: only a reconcilable tool is asked what happened"
            )
        self._check_hook(f"the {what} of tool {self.name!r}", function)

    def _check_hook(self, what: str, function: Callable[..., Any]) -> None:
        """It takes `ctx`, and parameters of the tool."""
        check_function(what, function)
        parameters = list(inspect.signature(function).parameters)
        for name in parameters[1:]:
            if name not in self.input.names:
                raise invalid(f"{what} takes {name!r}, which is no parameter of the tool")
        if not parameters:
            raise invalid(f"{what} must take `ctx: ToolContext` first")


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
    require_approval: tuple[str, ...] = ()
    """Tools whose calls by this agent wait for a person, whatever gates allow."""


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
    binding: object = "tool",
    advisory: Sequence[str] = (),
    volatile: Sequence[str] = (),
) -> AnyTool:
    """The tool, or the first thing that is wrong with it."""
    own = name or str(getattr(function, "__name__", ""))
    is_ours = own == PLAN_TOOL or (own == ASK_HUMAN and function is not ask_human)
    if not _TOOL_NAME.fullmatch(own) or is_ours:
        raise invalid(f"a tool cannot be called {own!r}: models take letters, digits, _ and -, at most 64")
    check_function(f"tool {own!r}", function)
    takes = ToolInput(own, function)
    if quiescence_s is not None and effect != EffectClass.RECONCILABLE:
        raise invalid(f"tool {own!r} is {effect}: quiescence_s is for reconcilable tools")
    timeout_ms = duration_ms(timeout_s, f"timeout_s of tool {own!r}")
    if type(consequential) is not bool:
        raise invalid(f"consequential of tool {own!r} is True or False, not {consequential!r}")
    loose = _loose(takes, advisory, volatile)
    bound = bound_schema(takes.schema, *loose)
    spec = ToolSpec(
        name=own,
        version=check_name(version, f"the version of tool {own!r}") if version else digest([own, bound])[:12],
        schema_digest=digest(bound) if any(loose) else takes.schema_digest,
        effect=EffectClass(effect),
        consequential=consequential,
        timeout_ms=timeout_ms,
        retry=_retry_policy(retry, own),
        quiescence_ms=_quiescence_ms(own, effect, quiescence_s, timeout_ms),
        pool=_pool(own, pool),
        binding=check_binding(binding, f"binding of tool {own!r}"),
        advisory=loose[0],
        volatile=loose[1],
    )
    return Tool(function, takes, spec, ensure_open)


def built_in(function: Callable[..., Any], ensure_open: Callable[[str], None]) -> AnyTool:
    """A tool of ours, which only reads."""
    return make_tool(
        function,
        ensure_open,
        name=None,
        effect=EffectClass.READ_ONLY,
        consequential=False,
        timeout_s=limits.TOOL_TIMEOUT_MS / 1_000,
        version="1",
        retry=1,
        quiescence_s=None,
    )


def _loose(takes: ToolInput, advisory: object, volatile: object) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The fields of the input that an approval does not rest on."""
    found = []
    for what, names in (("advisory", advisory), ("volatile", volatile)):
        found.append(names_of(names, f"{what} of tool {takes.tool!r}"))
        for name in found[-1]:
            if name not in takes.names:
                raise invalid(f"{what} of tool {takes.tool!r}: it has no parameter {name!r}")
    if both := sorted({*found[0]} & {*found[1]}):
        raise invalid(f"tool {takes.tool!r}: {both[0]!r} is advisory or volatile, not both")
    return found[0], found[1]


def check_binding(binding: object, what: str) -> Binding:
    """What an approval is bound to."""
    if binding not in get_args(Binding):
        raise invalid(f"{what} is one of {', '.join(get_args(Binding))}, not {binding!r}")
    return cast(Binding, binding)


def _pool(tool: str, pool: object) -> str:
    if pool != "" and not (isinstance(pool, str) and is_pool(pool)):
        raise invalid(f"pool of tool {tool!r} is {POOL_NAMES}, not {pool!r}")
    return str(pool)


def _quiescence_ms(tool: str, effect: str, quiescence_s: float | None, timeout_ms: int) -> int:
    """A tool that does not say is taken to be as slow as it may be."""
    if effect != EffectClass.RECONCILABLE or quiescence_s == 0:
        return 0
    return timeout_ms if quiescence_s is None else duration_ms(quiescence_s, f"quiescence_s of tool {tool!r}")


def make_agent(
    name: str,
    model: object,
    instructions: str,
    tools: Sequence[object],
    timeout_s: float,
    require_approval: object = False,
) -> Agent:
    """The agent, or the first thing that is wrong with it."""
    if not isinstance(model, Script) and not (isinstance(model, str) and _MODEL_NAME.fullmatch(model)):
        raise invalid(f"agent {name!r}: model is `provider:model` or scripted(…), not {model!r}")
    if not isinstance(instructions, str):
        raise invalid(f"agent {name!r}: instructions is text")
    timeout_ms = duration_ms(timeout_s, f"timeout_s of agent {name!r}")
    granted = names_of(tools, f"the tools of agent {name!r}")
    strict = _require_approval(name, granted, require_approval)
    return Agent(name, model, instructions, granted, timeout_ms, strict)


def _require_approval(agent: str, granted: tuple[str, ...], wanted: object) -> tuple[str, ...]:
    if type(wanted) is bool:
        # A question of its own is put to a person in any case.
        return tuple(tool for tool in granted if tool != ASK_HUMAN) if wanted else ()
    strict = names_of(wanted, f"require_approval of agent {agent!r}")
    for tool in strict:
        if tool not in granted:
            raise invalid(f"agent {agent!r}: require_approval names {tool!r}, which is not among its tools")
    return strict


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
    names = tuple(_name_of(thing) for thing in things)
    for at, name in enumerate(names):
        if name in names[:at]:
            raise invalid(f"{what}: {name!r} stands there twice")
    return names


def _name_of(thing: object) -> str:
    """A name as it is; of a registered thing its name; of a function the name that it would have been registered by."""
    if isinstance(thing, str):
        return thing
    return str(getattr(thing, "name", None) or getattr(thing, "__name__", None) or repr(thing))


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
