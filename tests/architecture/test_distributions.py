"""Each member of the workspace imports only what it declares, and all members and pins agree."""

from __future__ import annotations

import re
from importlib.metadata import version

from tests.architecture.distributions import Project, allowed, installed_packages, normalised, projects, undeclared
from tests.architecture.imports import flat
from tests.architecture.sources import ROOT, Source, library, shipped

INSTALLERS = {"pip", "uv"}
"""Only one of them did the work; the other may be missing, or be the one that came with the environment."""

ELSEWHERE = {"async-timeout"}
"""Needed by Python before 3.11.3 only, which Debian 12 has."""

BASE = Project(
    "shared/pyproject.toml",
    '[project]\nversion="1"\ndependencies=["pydantic>=2"]\n[project.optional-dependencies]\nsql=["sqlalchemy[asyncio]"]\ncli=["typer"]',
)
SERVICE = Project(
    "services/gateway/pyproject.toml", '[project]\nversion="1"\ndependencies=["placet[sql]==1", "FastAPI>=0.1"]'
)
GATEWAY = "services/gateway/src/placet_gateway/routes.py"


def test_every_member_declares_what_it_imports() -> None:
    base = projects()[0]
    found = [
        str(finding)
        for project in projects()
        for source in shipped()
        if source.path.startswith(project.path.removesuffix("pyproject.toml") + "src/")
        for finding in undeclared(source, allowed(project, base), installed_packages())
    ]
    assert found == []


def test_the_flat_files_need_no_extra() -> None:
    core = projects()[0].requirements()
    assert set(core) == {"common-expression-language", "cryptography", "jsonschema", "pydantic", "rfc8785"}
    bare = Project("elsewhere", '[project]\nversion="1"\ndependencies=["placet"]')
    names = allowed(bare, projects()[0])
    assert [str(f) for source in flat(library()) for f in undeclared(source, names, installed_packages())] == []


def test_all_members_have_one_version_and_ask_for_each_other_in_it() -> None:
    versions = {project.version for project in projects()}
    assert len(versions) == 1
    wanted = {line for project in projects() for line in re.findall(r'"placet[^"]*==([^"]+)"', project.text)}
    assert wanted == versions


def test_every_pin_is_plain_and_sorted_and_is_what_is_installed() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [re.fullmatch(r"([a-z0-9-]+)==([0-9][A-Za-z0-9.]*)", line) for line in lines]
    assert [line for line, pin in zip(lines, pins, strict=True) if pin is None] == []
    assert lines == sorted(lines, key=lambda line: line.partition("==")[0])
    pinned = {pin[1]: pin[2] for pin in pins if pin and pin[1] not in INSTALLERS | ELSEWHERE}
    assert pinned == {name: version(name) for name in pinned}


def test_every_declared_dependency_is_pinned() -> None:
    pinned = {line.partition("==")[0] for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()}
    declared = {name for project in projects() for name in project.requirements(project.extras)}
    assert {name for name in declared if not name.startswith("placet")} <= pinned


def test_an_undeclared_import_is_found() -> None:
    installed = {"fastapi": ["fastapi"], "sqlalchemy": ["SQLAlchemy"], "typer": ["typer"], "httpx": ["httpx"]}
    fine = Source(
        GATEWAY, "import json, fastapi\nimport sqlalchemy\nfrom placet import errors\nfrom placet_gateway import x"
    )
    assert list(undeclared(fine, allowed(SERVICE, BASE), installed)) == []
    stray = Source(GATEWAY, "import httpx\nimport typer\nimport placet_approval\nimport unheard_of")
    assert [finding.line for finding in undeclared(stray, allowed(SERVICE, BASE), installed)] == [1, 2, 3, 4]


def test_names_are_compared_as_registries_do() -> None:
    assert normalised("Pydantic_AI.slim") == "pydantic-ai-slim"
    assert SERVICE.requirements() == {"placet": {"sql"}, "fastapi": set()}
    assert allowed(BASE, BASE) == {"pydantic", "pydantic-core", "sqlalchemy", "typer"}
