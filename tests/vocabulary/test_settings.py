"""Settings: every bad value is named with what to do, secrets are never shown, and what is not a setting is said so."""

from __future__ import annotations

import pytest

from placet.settings import FILE, Finding, Settings, is_secret, missing, parse_settings, variable_of
from placet.views import AppView

DATABASE = "postgresql://planner:hush-hush@db:5432/placet"
FILES = {"/run/secrets/url": f"{DATABASE}\n", "/run/secrets/empty": " \n"}


def read(path: str) -> str:
    """The files of these tests."""
    if path == "/run/secrets/binary":
        raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")
    if path not in FILES:
        raise FileNotFoundError(2, "No such file or directory", path)
    return FILES[path]


def parsed(**environ: str) -> tuple[Settings | None, list[str]]:
    """Settings, and the findings as lines; variables without their prefix."""
    settings, findings = parse_settings({f"PLACET_{name}": value for name, value in environ.items()}, read)
    return settings, [str(finding) for finding in findings]


def set_by(**environ: str) -> Settings:
    settings, findings = parsed(**environ)
    assert settings is not None, findings
    assert findings == []
    return settings


def test_nothing_set_is_the_defaults_and_nothing_is_said() -> None:
    assert parse_settings({"PATH": "/bin", "HOME": "/"}, read) == (Settings(), ())


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("ENVIRONMENT", "production", "production"),
        ("APP", "examples.release:app", "examples.release:app"),
        ("HOSTS", "dispatcher, resume,planner", ("dispatcher", "resume", "planner")),
        ("HOSTS", " ", ()),
        ("DATABASE_URL", DATABASE, DATABASE),
        ("DATABASE_URL", "postgresql+asyncpg:///placet?host=/run", None),
        ("AMQP_URL", "amqps://user:p%40ss@mq/placet", "amqps://user:p%40ss@mq/placet"),
        ("AMQP_URL", "amqp://u:p@mq-1/v\n amqp://u:p@mq-2/v", "amqp://u:p@mq-1/v amqp://u:p@mq-2/v"),
        ("REDIS_URL", "redis://:pass@cache:6379/0", "redis://:pass@cache:6379/0"),
        (
            "ROLE_PASSWORDS",
            "planner=aaaa=aaaaaaaaaaaa\ngateway=bbbbbbbbbbbbbbbb\n",
            {"planner": "aaaa=aaaaaaaaaaaa", "gateway": "bbbbbbbbbbbbbbbb"},
        ),
        ("TOOL_POOLS", "gpu,eu-west", ("gpu", "eu-west")),
        ("GRACE_MS", "0", 0),
        ("HEALTH_PORT", "7301", 7301),
        ("HTTP_NAMES", "placet.example.org,10.0.0.1", ("placet.example.org", "10.0.0.1")),
        ("LOG_FORMAT", "text", "text"),
        ("TOKEN", "x" * 32, "x" * 32),
        ("EVENTS", "true", True),
        ("EVENTS", "false", False),
        ("OPERATORS", "true", True),
        ("APP_VIEW", '{"name":"release","version":"1"}', AppView(name="release", version="1")),
    ],
)
def test_a_good_value_is_taken(variable: str, value: str, expected: object) -> None:
    settings, findings = parsed(**{variable: value})
    if expected is None:
        assert settings is None, findings
        return
    assert settings is not None
    assert getattr(settings, variable.lower()) == expected
    assert findings == []


BAD = [
    ("ENVIRONMENT", "two\nlines"),
    ("TENANT", "\x00"),
    ("APP", "examples.release"),
    ("APP", "examples/release:app"),
    ("APP_VIEW", "{"),
    ("APP_VIEW", '{"name":"release"}'),
    ("HOSTS", "dispatcher,gateway"),
    ("HOSTS", "planner,planner"),
    ("DATABASE_URL", "mysql://u:hush-hush@h/d"),
    ("DATABASE_URL", "hush-hush"),
    ("DATABASE_URL", "postgresql:///d"),
    ("AMQP_URL", "http://u:hush-hush@h"),
    ("AMQP_URL", "amqp://u:hush-hush@h http://u:hush-hush@h"),
    ("REDIS_URL", "redis://:hush-hush@h:port/0"),
    ("TOKEN", "hush-hush"),
    ("TOKEN", "hush-hush " * 5),
    ("DECISION_KEYS", "keys.json"),
    ("SIGNING_KEY", "hush-hush"),
    ("ROLE_PREFIX", "Placet"),
    ("ROLE_PASSWORDS", "planner=hush"),
    ("ROLE_PASSWORDS", "nobody=hush-hush-hush-hush"),
    ("ROLE_PASSWORDS", "planner=hush-hush-hush-hush planner=hush-hush-hush-hush"),
    ("TOOL_POOLS", "GPU"),
    ("TOOL_POOLS", "control"),
    ("TOOL_POOLS", "a,a"),
    ("TOOL_POOL", "A b"),
    ("PREFETCH", "0"),
    ("PREFETCH", "many"),
    ("MODELS_MAX", "0"),
    ("TOOLS_MAX", "5000"),
    ("TOOLS_MAX", "1.5"),
    ("TOOL_TIMEOUT_MS_MAX", "-1"),
    ("TOOL_FILES", "files"),
    ("START_TIMEOUT_MS", "1e3"),
    ("GRACE_MS", "20s"),
    ("HEALTH_HOST", "a host"),
    ("HEALTH_PORT", "65536"),
    ("HTTP_HOST", ""),
    ("HTTP_PORT", "http"),
    ("HTTP_NAMES", "https://placet.example.org"),
    ("EVENTS", "sometimes"),
    ("OPERATORS", "alice"),
    ("DEAD_LETTERS_MAX", "0"),
    ("LOG_LEVEL", "loud"),
    ("LOG_FORMAT", "xml"),
]


@pytest.mark.parametrize(("variable", "value"), [(name, value) for name, value in BAD if value])
def test_a_bad_value_is_named_with_what_it_should_be_and_no_secret_is_shown(variable: str, value: str) -> None:
    settings, findings = parsed(**{variable: value})
    assert settings is None
    (line,) = findings
    assert line.startswith(f"PLACET_{variable} ")
    assert line.endswith(f"it should be {Settings.model_fields[variable.lower()].description}")
    assert "hush" not in line
    assert (repr(value) in line) is not is_secret(variable.lower())


def test_every_setting_has_a_bad_value_in_these_tests_and_says_what_it_should_be() -> None:
    assert {name.lower() for name, _ in BAD} == set(Settings.model_fields)
    assert all(field.description for field in Settings.model_fields.values())


def test_everything_wrong_is_named_at_once() -> None:
    settings, findings = parsed(GRACE_MS="soon", LOG_LEVEL="loud", AMQP_URL_FILE="/nowhere", GRACEMS="1")
    assert settings is None
    assert [line.split()[0] for line in findings] == [
        "PLACET_AMQP_URL_FILE", "PLACET_GRACE_MS", "PLACET_LOG_LEVEL", "PLACET_GRACEMS",
    ]  # fmt: skip


def test_a_secret_comes_from_a_file_and_does_not_show_in_the_settings() -> None:
    settings = set_by(DATABASE_URL_FILE="/run/secrets/url")
    assert settings.database_url == DATABASE
    assert "hush" not in repr(settings)
    assert "hush" not in str(settings)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/nowhere", "cannot be read: No such file or directory"),
        ("/run/secrets/empty", "which is empty"),
        ("/run/secrets/binary", "cannot be read: it is not text"),
    ],
)
def test_a_file_that_gives_nothing_is_named(path: str, said: str) -> None:
    settings, findings = parsed(DATABASE_URL_FILE=path)
    assert settings is None
    (line,) = findings
    assert line.startswith(f"PLACET_DATABASE_URL_FILE names {path}")
    assert said in line


def test_a_value_and_a_file_for_it_contradict_each_other() -> None:
    settings, findings = parsed(DATABASE_URL=DATABASE, DATABASE_URL_FILE="/run/secrets/url")
    assert settings is None
    assert findings == ["PLACET_DATABASE_URL and PLACET_DATABASE_URL_FILE are both set: remove one of them"]


def test_an_empty_variable_is_one_that_is_not_set() -> None:
    assert set_by(APP="", GRACE_MS=" ", REDIS_URL_FILE="") == Settings()


@pytest.mark.parametrize(
    ("variable", "meant"),
    [("GRACEMS", "PLACET_GRACE_MS"), ("LOGLEVEL", "PLACET_LOG_LEVEL"), ("DATABSE_URL_FILE", "PLACET_DATABASE_URL")],
)
def test_what_is_no_setting_is_said_to_be_ignored_and_what_may_be_meant(variable: str, meant: str) -> None:
    settings, findings = parsed(**{variable: "1"})
    assert settings == Settings()
    assert findings == [f"PLACET_{variable} is not a setting and is ignored: is {meant} meant?"]


def test_what_the_client_and_the_tests_read_is_no_mistake() -> None:
    assert (
        set_by(URL="http://x", TOKEN="y" * 40, PERSON="alice", DATA="d", TEST_AMQP_URL="amqp://h").tenant == "default"
    )


def test_the_approval_service_shares_its_process_with_nobody() -> None:
    settings, findings = parsed(HOSTS="approval,dispatcher")
    assert settings is None
    assert "hosted alone" in findings[0]
    assert set_by(HOSTS="approval").hosts == ("approval",)


def test_a_pool_is_one_of_the_pools() -> None:
    settings, findings = parsed(TOOL_POOL="gpu")
    assert settings is None
    assert findings == ["PLACET_TOOL_POOL is 'gpu': set it to one of PLACET_TOOL_POOLS"]
    assert set_by(TOOL_POOL="gpu", TOOL_POOLS="eu,gpu").tool_pool == "gpu"


def test_what_is_needed_and_not_set_is_named_with_who_needs_it() -> None:
    findings = missing(set_by(APP="a:b"), {"app": "the planner", "database_url": "the planner"})
    assert findings == (
        Finding(
            True,
            "PLACET_DATABASE_URL",
            "PLACET_DATABASE_URL (or PLACET_DATABASE_URL_FILE) is not set, and the planner needs it: set it to the "
            "address of PostgreSQL, such as postgresql://USER:PASSWORD@HOST:5432/NAME",
        ),
    )


def test_names_and_variables_correspond() -> None:
    assert variable_of("grace_ms") == "PLACET_GRACE_MS"
    assert FILE == "_FILE"
    assert {name for name in Settings.model_fields if is_secret(name)} == {
        "database_url",
        "amqp_url",
        "redis_url",
        "token",
        "signing_key",
        "role_passwords",
    }
