# Placet: the verbs. Plain `make` lists them; each one makes the environment first if it is missing or out of date.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.up-to-date
PROJECTS := pyproject.toml shared/pyproject.toml $(wildcard services/*/pyproject.toml)
SOURCES := shared/src $(wildcard services/*/src) $(wildcard tests examples)
EDITABLES := -e 'shared[cli,loop,models,postgres,rabbitmq,redis,sql]' $(addprefix -e ./,$(patsubst %/pyproject.toml,%,$(wildcard services/*/pyproject.toml)))
PYTHONS := python3.13 python3.12 python3.11 python3
WORKERS ?= 2
SEEDS ?= 1000
# Where Python is told to keep no bytecode, each of the many processes below would compile everything again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help setup demo run test browser live check format simulate bench conformance up down scale logs compose-test constraints clean

help:  ## list the verbs
	@sed -nE 's/^([a-z-]+):.*## (.*)/\1|\2/p' $(firstword $(MAKEFILE_LIST)) | while IFS='|' read -r verb what; do \
	  printf '  make %-13s %s\n' "$$verb" "$$what"; done

setup: $(STAMP)  ## make the virtual environment (.venv) with pinned versions; every verb below implies it

demo: $(STAMP)  ## run the main job for real, kill it half way, approve, and show what happened
	@$(BIN)/python -m examples.release.demo

run: $(STAMP)  ## leave the example system up, on a scratch repository, for a person to use
	@mkdir -p -m 700 .placet
	@$(BIN)/python -m examples.release.repository .placet/repository
	@RELEASE_REPOSITORY="$${RELEASE_REPOSITORY:-$$PWD/.placet/repository}" $(BIN)/placet dev examples.release:app

# Servers are those whose address is given, else containers, else installed programs, else Debian packages installed now.
test: $(STAMP)  ## run all tests, also those on real servers (WORKERS=2 processes; ARGS='-k name' to choose)
	@$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --ignore tests/live/test_compose.py --ignore tests/browser $(ARGS)

browser: $(STAMP)  ## run the tests of the web inbox in a real Chromium: the one that is installed, or installed now
	@$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal tests/browser $(ARGS)

live: $(STAMP)  ## run only the tests on real servers
	@$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal tests/live --ignore tests/live/test_compose.py $(ARGS)

check: $(STAMP)  ## format, lint and strict types, without changing anything
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy $(SOURCES)

format: $(STAMP)  ## format the code and fix what the linter can
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

simulate: $(STAMP)  ## crash, repeat and reorder under SEEDS=1000 seeds, or repeat one: SEED=7
	@$(BIN)/python -m tests.simulation $(if $(SEED),--seed $(SEED),--seeds $(SEEDS)) $(ARGS)

bench: $(STAMP)  ## measure runs and decisions per second on this machine
	@$(BIN)/python -m tests.benchmarks $(ARGS)

conformance: $(STAMP)  ## run the tests of numbered cases and print a table by case
	@$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -q --conformance $(ARGS)

up:  ## build and start the whole system in containers, and wait until it is healthy (Docker with Compose 2)
	@secrets=$${PLACET_SECRETS:-deploy/secrets}; python3 deploy/make_secrets.py "$$secrets"; \
	digest=$$(python3 deploy/make_secrets.py --digest "$$secrets"); anew=; \
	test "$$digest" = "$$(cat "$$secrets/.up-with" 2>/dev/null)" || anew=--force-recreate; \
	docker compose up --detach --build --wait $$anew; \
	echo "$$digest" > "$$secrets/.up-with"
	@echo "Placet is up at http://$${PLACET_BIND:-127.0.0.1}:$${PLACET_PORT:-7300}."
	@echo "Try: export PLACET_TOKEN_FILE=deploy/secrets/token; placet run start release --goal 'Cut the next release' --wait"

down:  ## stop it; WIPE=1: and forget everything it knows
	@docker compose down $(if $(WIPE),--volumes)

scale:  ## change how many there are of a service: SERVICE=tool-executor N=3
	@docker compose scale $(SERVICE)=$(N)

logs:  ## follow the logs of all services, or of one: SERVICE=planner
	@docker compose logs --follow --tail 100 $(SERVICE)

compose-test: $(STAMP)  ## run the system in containers of its own and break it; makes base images where none can be pulled
	@deploy/local-images/ensure.sh
	@PLACET_TEST_COMPOSE=1 $(BIN)/python -m pytest -v tests/live/test_compose.py $(ARGS)

constraints: $(STAMP)  ## resolve again and write constraints.txt with the newest releases
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --upgrade --no-header --no-annotate --all-extras \
	  --group build --group dev --group installer $(filter-out pyproject.toml,$(PROJECTS)) \
	  | grep -vE "== '(emscripten|win32)'|^-e|^\./|^file:" | sed 's/ *;.*//' > constraints.new
	@mv constraints.new constraints.txt

clean:  ## remove the environment and everything generated
	@rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis .placet build dist
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# uv installs several times faster than pip; where it cannot be had, or cannot reach what pip reaches, pip does the work.
$(STAMP): constraints.txt $(PROJECTS)
	@if ! $(BIN)/python -c 'import pip' 2>/dev/null; then \
	  python="$(PYTHON)"; \
	  for candidate in $(PYTHONS); do \
	    test -z "$$python" || break; \
	    if $$candidate -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then python=$$candidate; fi; \
	  done; \
	  test -n "$$python" || { echo 'Placet needs Python 3.11 or newer with the venv module: install it, or say make setup PYTHON=/path/to/python3' >&2; exit 1; }; \
	  $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { echo "$$python is not Python 3.11 or newer" >&2; exit 1; }; \
	  echo "setup: $(VENV) from $$($$python --version)"; \
	  $$python -m venv --clear $(VENV); \
	fi
	@echo 'setup: installing pinned packages'
	@export PIP_DISABLE_PIP_VERSION_CHECK=1 VIRTUAL_ENV=$(VENV); \
	pip() { $(BIN)/python -m pip install -qq --constraint constraints.txt "$$@"; }; \
	fast() { $(BIN)/uv pip install -qq --compile-bytecode --constraint constraints.txt "$$@"; }; \
	members() { "$$1" --group build --group dev && "$$1" --no-build-isolation $(EDITABLES); }; \
	if pip uv && members fast; then :; \
	else echo 'setup: going on with pip alone (slower)'; pip --upgrade pip && members pip; fi
	@touch $@
