"""Decides what can be set, by `PLACET_*` variables, and what is said of one that is wrong.

Each variable may also be given as `PLACET_…_FILE`, the name of a file that holds the value: secrets are. Pure: the
caller hands over its environment and a function that reads a file. Everything wrong is named at once, with what to do;
no message shows a secret.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Literal, NamedTuple
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, ValidationError
from pydantic.config import JsonDict

from placet import topology
from placet.errors import ContractError
from placet.values import Name, PoolName
from placet.views import AppView

PREFIX = "PLACET_"
FILE = "_FILE"
CLIENT = ("URL", "TOKEN", "PERSON", "DATA", "TRACEBACK")
"""Read by the command line and the client; no matter of a service, and no mistake in its environment."""
TESTS = "PLACET_TEST_"
PORT_MAX = 65_535
PLACES_MAX = 4_096
LETTERS_MAX = 10_000_000
HOUR_MS = 3_600_000


class Finding(NamedTuple):
    """What is to be said of one variable. `fatal`: nothing can start like this."""

    fatal: bool
    variable: str
    message: str

    def __str__(self) -> str:
        return self.message


def _url(*schemes: str) -> AfterValidator:
    def check(text: str) -> str:
        parts = urlsplit(text)
        if parts.scheme not in schemes or not parts.hostname or parts.port == 0:
            raise ValueError(f"its scheme is one of {', '.join(schemes)}, and it names a host")
        return text

    return AfterValidator(check)


def _urls(*schemes: str) -> AfterValidator:
    one = _url(*schemes).func

    def check(text: str) -> str:
        return " ".join(one(url) for url in text.split())  # type: ignore[call-arg]

    return AfterValidator(check)


def _words(text: object) -> object:
    return tuple(word.strip() for word in text.split(",") if word.strip()) if isinstance(text, str) else text


def _document(text: object) -> object:
    return json.loads(text) if isinstance(text, str) else text


def _pairs(text: object) -> object:
    if not isinstance(text, str):
        return text
    pairs = [word.partition("=") for word in text.split()]
    if len({name for name, _, _ in pairs}) != len(pairs):
        raise ValueError("each is named once")
    return {name: value for name, _, value in pairs}


def _of_services(passwords: dict[str, str]) -> dict[str, str]:
    if unknown := passwords.keys() - {*topology.QUEUES, "gateway"}:
        raise ValueError(f"no service is called {', '.join(sorted(unknown))}")
    return passwords


def _distinct(words: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(words)) != len(words):
        raise ValueError("each is named once")
    return words


Port = Annotated[int, Field(ge=0, le=PORT_MAX)]
Places = Annotated[int, Field(ge=1, le=PLACES_MAX)]
Address = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9.:\[\]-]{1,255}$")]
Pool = Annotated[PoolName, StringConstraints(min_length=1)]
RolePassword = Annotated[str, StringConstraints(pattern=r"^[!-~]{16,200}$")]
Host = Literal["dispatcher", "resume", "planner", "tool-executor", "approval"]
ImportString = Annotated[str, StringConstraints(pattern=r"^[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*$")]
Document = Annotated[str, StringConstraints(pattern=r"^\{")]
"""JSON, which is read where it is used: what is wrong with it is told there, with its place."""
Secret = Annotated[str, StringConstraints(min_length=32, max_length=4_096, pattern=r"^[!-~]+$")]


def _pools(names: tuple[str, ...]) -> tuple[str, ...]:
    try:
        topology.make_topology(names)
    except ContractError as error:
        raise ValueError(error.message) from error
    return names


_SECRET: JsonDict = {"secret": True}


class Settings(BaseModel):
    """Everything that a process can be told. Each field is the variable `PLACET_` and its name in capitals.

    The description says what a value must be; it is what an operator is told who set another.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    environment: Name = Field("development", description="the name of this installation, such as production")
    tenant: Name = Field("default", description="whose data the gateway shows: a name on one line")
    app: ImportString | None = Field(None, description="the application, such as examples.release:app")
    app_view: Annotated[AppView, BeforeValidator(_document)] | None = Field(
        None,
        description="what the gateway tells of the application, of which it runs no code: as `placet describe` prints",
    )
    hosts: Annotated[tuple[Host, ...], BeforeValidator(_words), AfterValidator(_distinct)] = Field(
        (), description=f"the machines this process hosts, of {', '.join(topology.QUEUES)}, with commas between them"
    )

    database_url: Annotated[str, _url("postgresql", "postgres", "postgresql+asyncpg")] | None = Field(
        None,
        repr=False,
        json_schema_extra=_SECRET,
        description="the address of PostgreSQL, such as postgresql://USER:PASSWORD@HOST:5432/NAME",
    )
    amqp_url: Annotated[str, _urls("amqp", "amqps")] | None = Field(
        None,
        repr=False,
        json_schema_extra=_SECRET,
        description="the address of RabbitMQ, such as amqp://USER:PASSWORD@HOST:5672/VHOST; several nodes with blanks "
        "between",
    )
    redis_url: Annotated[str, _url("redis", "rediss")] | None = Field(
        None,
        repr=False,
        json_schema_extra=_SECRET,
        description="the address of Redis, such as redis://:PASSWORD@HOST:6379/0",
    )
    token: Secret | None = Field(
        None,
        repr=False,
        json_schema_extra=_SECRET,
        description="the gateway's bearer token: at least 32 visible characters",
    )

    decision_keys: Document | None = Field(
        None,
        repr=False,
        description="the registry of keys whose decisions are believed, as JSON; a file is read again when it changes",
    )
    signing_key: Document | None = Field(
        None,
        repr=False,
        json_schema_extra=_SECRET,
        description="the gateway's own key, which signs for whoever decides there: what `placet keys new` writes",
    )

    role_prefix: Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,39}$")] = Field(
        "placet", description="what the names of the services' roles in PostgreSQL begin with: lower-case letters, '_'"
    )
    role_passwords: Annotated[dict[str, RolePassword], BeforeValidator(_pairs), AfterValidator(_of_services)] = Field(
        {},
        repr=False,
        json_schema_extra=_SECRET,
        description="the passwords of these roles, as service=password, with blanks or new lines between them",
    )

    tool_pools: Annotated[
        tuple[Pool, ...], BeforeValidator(_words), AfterValidator(_distinct), AfterValidator(_pools)
    ] = Field(
        (), description="names of the pools of tool executors beside the common one: lower-case letters, digits and '-'"
    )
    tool_pool: Pool | None = Field(
        None, description="the pool that this tool executor serves: one of PLACET_TOOL_POOLS"
    )
    prefetch: Annotated[int, Field(ge=1, le=10_000)] | None = Field(
        None, description="how many messages a consumer holds: a whole number from 1 to 10000"
    )
    models_max: Places = Field(64, description=f"model calls at a time: a whole number from 1 to {PLACES_MAX}")
    tools_max: Places = Field(16, description=f"tools at a time: a whole number from 1 to {PLACES_MAX}")
    tool_timeout_ms_max: Annotated[int, Field(ge=1, le=24 * HOUR_MS)] = Field(
        HOUR_MS, description="the longest that any tool may take here, in milliseconds, at most a day"
    )

    tool_files: Annotated[str, StringConstraints(pattern=r"^/[^\x00]*$")] | None = Field(
        None, description="the folder, from the root on, whose files this executor gives to tools that take a file"
    )

    start_timeout_ms: Annotated[int, Field(ge=0, le=HOUR_MS)] = Field(
        60_000, description="how long to wait for the servers at the start, in milliseconds, at most an hour"
    )
    grace_ms: Annotated[int, Field(ge=0, le=HOUR_MS)] = Field(
        20_000, description="how long work may go on after SIGTERM, in milliseconds, at most an hour"
    )
    health_host: Address = Field("127.0.0.1", description="the address on which the probes are answered")
    health_port: Port | None = Field(
        None, description=f"the port on which the probes are answered: 0 (any free one) to {PORT_MAX}"
    )
    http_host: Address = Field("127.0.0.1", description="the address on which the gateway listens")
    http_port: Port = Field(7300, description=f"the port on which the gateway listens: 0 (any free one) to {PORT_MAX}")
    http_names: Annotated[tuple[Address, ...], BeforeValidator(_words), AfterValidator(_distinct)] = Field(
        (), description="names the gateway answers to besides loopback, with commas between them"
    )
    events: bool = Field(
        False, description="whether run.* and approval.* are published for the outside on placet.events: true or false"
    )
    operators: bool = Field(
        False,
        description="whether the gateway also shows dead letters of no known tenant, which are the operators': true or "
        "false",
    )
    dead_letters_max: Annotated[int, Field(ge=1, le=LETTERS_MAX)] = Field(
        10_000,
        description="dead letters that are kept for each of the broker's queues: a whole number from 1 to "
        f"{LETTERS_MAX}",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="debug, info, warning or error")
    log_format: Literal["json", "text"] = Field("json", description="json or text")


def variable_of(name: str) -> str:
    """The variable that sets a field."""
    return PREFIX + name.upper()


def is_secret(name: str) -> bool:
    """Whether a value must never be shown."""
    extra = Settings.model_fields[name].json_schema_extra
    return isinstance(extra, dict) and bool(extra.get("secret"))


def parse_settings(
    environ: Mapping[str, str], read: Callable[[str], str]
) -> tuple[Settings | None, tuple[Finding, ...]]:
    """The settings in `environ`, and all that is to be said of it; None when one of the findings is fatal.

    `read` gives the text of a file and may raise OSError or UnicodeError. An empty variable is one that is not set, as
    compose files and shells leave them.
    """
    findings: list[Finding] = []
    values: dict[str, str] = {}
    for name in Settings.model_fields:
        value = _given(name, environ, read, findings)
        if value is not None:
            values[name] = value
    findings += _unknown(environ)
    try:
        settings = Settings.model_validate_strings(values)
    except ValidationError as error:
        wrong = dict.fromkeys(str(finding["loc"][0]) for finding in error.errors(include_url=False))
        findings += [_bad(name, values[name]) for name in wrong]
        return None, _ordered(findings)
    findings += _contradictions(settings)
    return (None if any(finding.fatal for finding in findings) else settings), _ordered(findings)


def missing(settings: Settings, needed: Mapping[str, str]) -> tuple[Finding, ...]:
    """Findings for what is not set; `needed` maps a field to what needs it."""
    return tuple(
        Finding(True, variable_of(name), f"{_named(name)} is not set, and {who} needs it: set it to {_advice(name)}")
        for name, who in needed.items()
        if getattr(settings, name) in (None, ())
    )


def _given(name: str, environ: Mapping[str, str], read: Callable[[str], str], findings: list[Finding]) -> str | None:
    variable = variable_of(name)
    value, path = environ.get(variable, "").strip(), environ.get(variable + FILE, "").strip()
    if value and path:
        what = f"{variable} and {variable}{FILE} are both set: remove one of them"
        findings.append(Finding(True, variable, what))
        return None
    if not path:
        return value or None
    try:
        value = read(path).strip()
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        what = f"{variable}{FILE} names {path}, which cannot be read: {reason}"
        findings.append(Finding(True, variable + FILE, what))
        return None
    if not value:
        what = f"{variable}{FILE} names {path}, which is empty: put in {_advice(name)}"
        findings.append(Finding(True, variable + FILE, what))
    return value or None


def _bad(name: str, value: str) -> Finding:
    shown = "is not valid" if is_secret(name) else f"is {value!r}"
    return Finding(True, variable_of(name), f"{variable_of(name)} {shown}; it should be {_advice(name)}")


def _unknown(environ: Mapping[str, str]) -> Iterator[Finding]:
    known = {variable_of(name) for name in Settings.model_fields} | {PREFIX + name for name in CLIENT}
    for variable in sorted(environ):
        plain = variable.removesuffix(FILE)
        if not variable.startswith(PREFIX) or variable.startswith(TESTS) or {variable, plain} & known:
            continue
        near = difflib.get_close_matches(plain, known, 1, 0.8)
        what = f"{variable} is not a setting and is ignored"
        yield Finding(False, variable, what + (f": is {near[0]} meant?" if near else ""))


def _contradictions(settings: Settings) -> Iterator[Finding]:
    if topology.APPROVALS in settings.hosts and len(settings.hosts) > 1:
        what = "PLACET_HOSTS names approval beside others: it is hosted alone, since it runs no code of an application"
        yield Finding(True, variable_of("hosts"), what)
    if settings.tool_pool is not None and settings.tool_pool not in settings.tool_pools:
        what = f"PLACET_TOOL_POOL is {settings.tool_pool!r}: set it to one of PLACET_TOOL_POOLS"
        yield Finding(True, variable_of("tool_pool"), what)
    if settings.health_port and settings.health_port == settings.http_port:
        what = "PLACET_HEALTH_PORT and PLACET_HTTP_PORT are the same: the gateway answers the probes on its own port"
        yield Finding(False, variable_of("health_port"), what)


def _ordered(findings: list[Finding]) -> tuple[Finding, ...]:
    return tuple(sorted(findings, key=lambda finding: (not finding.fatal, finding.variable)))


def _named(name: str) -> str:
    return f"{variable_of(name)} (or {variable_of(name)}{FILE})" if is_secret(name) else variable_of(name)


def _advice(name: str) -> str:
    return Settings.model_fields[name].description or ""
