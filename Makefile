# Two commands do all the set-up: `make demo` and `make test`. Root or not; as an ordinary user
# nothing outside this folder is touched, and what is missing is named.

VENV ?= .venv
BIN := $(VENV)/bin
PIP_FLAGS ?= --quiet --disable-pip-version-check --timeout 60 --retries 10
PYTEST_FLAGS ?=
# Where reports in JUnit's format go, if anywhere.
REPORTS ?=
# These look at the whole machine (mounts, control groups, temporary files): one at a time. Not
# more than four of the others: each process of theirs starts database servers of its own.
ALONE := tests/sandbox tests/mutation tests/soak
JOBS ?= $(shell n=$$(nproc); echo $$(( n < 4 ? n : 4 )))

# Half of a virtual environment is none.
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
.PHONY: help demo test lint bench clean

help:  ## Show this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 10

$(BIN)/python:
	@python=$$(scripts/find-python) && "$$python" -m venv $(VENV)

$(VENV)/.demo: $(BIN)/python pyproject.toml
	@echo "installing intercode into $(VENV) …"
	@$(BIN)/pip install $(PIP_FLAGS) -e .
	@touch $@

$(VENV)/.test: $(BIN)/python pyproject.toml
	@echo "installing intercode and its tests' tools into $(VENV) …"
	@$(BIN)/pip install $(PIP_FLAGS) -e '.[test,lint]'
	@touch $@ $(VENV)/.demo

demo: $(VENV)/.demo  ## Watch an episode, then three scripted agents in all environments
	@$(BIN)/intercode demo

test: $(VENV)/.test  ## Install what the tests need, and run them all
	@scripts/need-system debootstrap docker-registry git perl skopeo
	@scripts/need-system --packages debian-archive-keyring || true
	@[ -e /usr/include/stdio.h ] && command -v gcc >/dev/null || scripts/need-system --packages gcc libc6-dev || true
	@[ -x /usr/bin/python3 ] || scripts/need-system --packages python3 || true
	@/usr/bin/python3 -c 'import pytest' 2>/dev/null || scripts/need-system --packages python3-pytest || true
	@[ -x /usr/sbin/mariadbd ] || [ -x /usr/sbin/mysqld ] || scripts/need-system --packages mariadb-server || true
	@[ -x /usr/sbin/dockerd ] || [ -x /usr/bin/dockerd ] || scripts/need-system --packages docker.io || true
	@ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || scripts/need-system --packages postgresql || true
	@$(BIN)/python -m pytest -n $(JOBS) --dist loadfile $(ALONE:%=--ignore=%) \
	    $(if $(REPORTS),--junitxml=$(REPORTS)/together.xml) $(PYTEST_FLAGS)
	@$(BIN)/python -m pytest $(ALONE) $(if $(REPORTS),--junitxml=$(REPORTS)/alone.xml) $(PYTEST_FLAGS)

lint: $(VENV)/.test  ## Format, lint, types, layers
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

bench: $(VENV)/.test  ## Measure against the machine's physical limits; writes benchmarks/results/
	@$(BIN)/python benchmarks/bench.py

clean:  ## Remove what the other targets made here
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis runs
