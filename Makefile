# Two commands do all the set-up: `make demo` and `make test`. Root or not; as an ordinary user
# nothing outside this folder is touched, and what is missing is named.

VENV ?= .venv
BIN := $(VENV)/bin
PIP_FLAGS ?= --quiet --disable-pip-version-check --timeout 60 --retries 10
PYTEST_FLAGS ?=
# The size of `make soak`.
EPISODES ?= 10000
KILLS ?= 50
SESSIONS ?= 64
NODES ?= 10
# The copy of 2023's data, with its recorded runs, that `make graders` replays.
RELEASE ?= ../shared/upstream
# One more than cores, since some tests wait; not more than four: each process starts database
# servers, and an engine, of its own.
JOBS ?= $(shell n=$$(nproc); echo $$(( n < 4 ? n + 1 : 4 )))

# What an installation is made from, apart from the Python that it runs in place.
BUILD := $(wildcard packages/*/pyproject.toml packages/*/hatch_build.py)
NATIVE := packages/sandbox/src/intercode_sandbox/native/static
BUILD += $(wildcard $(NATIVE)/*.[ch])

# Half of a virtual environment is none.
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
.PHONY: help demo set-up test test-all test-integrations test-agents test-versions test-cgroup2 test-aarch64 train-demo train-model soak chaos lint docs bench graders dist clean test-site

help:  ## Show this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 19

$(BIN)/python:
	@python=$$(scripts/find-python) && "$$python" -m venv $(VENV)

$(VENV)/.demo: $(BIN)/python $(BUILD)
	@echo "installing intercode into $(VENV) …"
	@$(BIN)/pip install $(PIP_FLAGS) -r requirements.txt
	@touch $@

$(VENV)/.test: $(BIN)/python $(BUILD)
	@echo "installing intercode and its tests' tools into $(VENV) …"
	@$(BIN)/pip install $(PIP_FLAGS) -r requirements.txt -e 'packages/gym[lint]' \
	    -e 'packages/integrations[test]' -e 'packages/paper[test]'
	@touch $@ $(VENV)/.demo

demo: $(VENV)/.demo  ## Watch an episode, then three scripted agents in all environments
	@$(BIN)/intercode demo

set-up: $(VENV)/.test
	@# Where Python writes no bytecode, each of the processes that tests start would compile it all.
	@$(BIN)/python -m compileall -q packages
	@# A dataset, by itself: what it would bring along, nothing of it is asked to run.
	@[ -d $(VENV)/alfa/icalfa ] || \
	    $(BIN)/pip install $(PIP_FLAGS) --no-deps --target $(VENV)/alfa icalfa==0.3.6
	@scripts/need-system git perl
	@# Tools whose settings must not steer a verification.
	@scripts/need-system curl file jq npm sqlite3 vim wget
	@[ -e /usr/include/stdio.h ] && command -v gcc >/dev/null || scripts/need-system --packages gcc libc6-dev || true
	@[ -x /usr/bin/python3 ] || scripts/need-system --packages python3 || true
	@/usr/bin/python3 -c 'import pip, pytest' 2>/dev/null || scripts/need-system --packages python3-pip python3-pytest || true

test: set-up  ## Install what the tests need, and run what a change can break (ten minutes)
	@$(BIN)/python -m pytest --suite=core -n $(JOBS) --dist loadfile --no-loadscope-reorder $(PYTEST_FLAGS)

# The suites of tests/suites.toml, each of which installs what it needs: SUITES="docs engines", or
# SUITES=changed for those whose inputs have changed since they passed.
SUITES ?=
test-all: set-up  ## All other suites, a line for each; what passes is recorded
	@PYTHONPATH=tests $(BIN)/python -m suites $(SUITES)

soak: set-up  ## Soak and fault tests at full size: hours
	@scripts/need-system --packages mariadb-server postgresql || true
	@INTERCODE_SOAK_EPISODES=$(EPISODES) INTERCODE_SOAK_KILLS=$(KILLS) \
	    INTERCODE_SOAK_SESSIONS=$(SESSIONS) $(BIN)/python -m pytest -s $(PYTEST_FLAGS) \
	    $(shell grep -rl --include="test_*.py" INTERCODE_SOAK packages/*/tests)
	@INTERCODE_SOAK_NODES=$(NODES) scripts/test-integrations ray

# Its settings (MINUTES, SEED, …) are read from the environment, where make puts what it is given.
chaos: set-up  ## Run tests while their processes are frozen at random (root; MINUTES=20)
	@$(BIN)/python tests/chaos

graders: set-up  ## Precision and recall of the rewards, on labelled states (RELEASE=path)
	@$(BIN)/python benchmarks/graders/measure.py $(RELEASE)
	@$(BIN)/python benchmarks/graders/pairs.py $(VENV)/alfa

# Which of them, if not all: ONLY="trl mcp".
ONLY ?=
test-integrations:  ## The adapters, against the frameworks (not offline at first)
	@scripts/test-integrations $(ONLY)

# More of it in ARGS, as in ARGS="--out runs/second --seed 1". CHECK=yes runs it in a small size, and
# checks what it learns.
ARGS ?=
CHECK ?=
train-demo:  ## Train a policy of a million parameters until it solves new tasks (45 minutes)
	@scripts/test-integrations trl -- $(if $(CHECK),-m pytest --noconftest -q packages/integrations/tests/integrations/train_demo.py,examples/training/train.py $(ARGS))

train-model:  ## Train SmolLM2-135M by the rewards of its own attempts (two hours; fetches 94 MB)
	@scripts/test-integrations trl -- examples/training/language_model.py $(ARGS)

# Some hundred megabytes each, which stay in the cache; mini-swe-agent and aider are in test-integrations.
AGENTS ?= claude-code codex openhands terminus
test-agents:  ## The large command-line agents, really installed (not offline at first)
	@scripts/need-system npm
	@INTERCODE_AGENTS="$(AGENTS)" scripts/test-integrations outside

# Each from PYTHONS (paths), PATH, pyenv or, for root, a Debian. Without LEAVE_OUT="3.12" a version that
# is not to be had is an error.
VERSIONS ?= 3.11 3.12 3.13 3.14
PYTHONS ?=
LEAVE_OUT ?=
test-versions:  ## The wheel under each declared version of Python (not offline)
	@PYTHONS="$(PYTHONS)" LEAVE_OUT="$(LEAVE_OUT)" scripts/test-versions $(VERSIONS)

test-cgroup2: $(VENV)/.test  ## The tests of limits on cgroup v2, in a virtual machine (root)
	@scripts/need-system debootstrap mke2fs
	@scripts/need-system --packages debian-archive-keyring qemu-system-$(if $(filter aarch64,$(shell uname -m)),arm,x86)
	@$(BIN)/python packages/sandbox/tests/cgroup2/machine.py

# Of new wheels, or of those that `make dist` built: DIST=dist. TESTS="tests/sandbox/test_exec.py"
# names files, instead of those of the native sandbox's contract.
test-aarch64: $(VENV)/.test  ## The sandbox's aarch64 wheel by its tests, in an emulated machine (root)
	@scripts/need-system cpio
	@scripts/need-system --packages qemu-system-arm
	@DIST="$(DIST)" $(BIN)/python packages/sandbox/tests/aarch64/machine.py $(TESTS)

lint: $(VENV)/.test  ## Format, lint, types, layers, the tests' rules and mutations, spelling, English, names, docstrings and workflows
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/clang-format --dry-run -Werror --style=file:$(NATIVE)/.clang-format $(NATIVE)/*.[ch] packages/sandbox/tests/sandbox/static/*.c
	@$(BIN)/clang-tidy --quiet $(NATIVE)/*.c -- -std=c11 -ffreestanding 2> /dev/null
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python tests/rules.py
	@$(BIN)/python -m tests.mutation --fit
	@$(BIN)/codespell packages/*/src packages/*/*.md packages/*/*.py docs examples .github *.md
	@$(BIN)/python tests/english.py
	@$(BIN)/python tests/names.py
	@$(BIN)/python tests/docstrings.py
	@$(BIN)/python tests/repository.py
	@$(BIN)/python tests/references.py

# Not among the tests' packages: what it needs, nothing else does.
$(VENV)/.docs: $(BIN)/python $(BUILD)
	@echo "installing intercode and its site's tools into $(VENV) …"
	@$(BIN)/pip install $(PIP_FLAGS) -r requirements.txt -e 'packages/gym[docs]'
	@touch $@ $(VENV)/.demo

docs: $(VENV)/.docs  ## Build the site from docs/ and the source; its links are checked
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "to open in a browser: site/index.html"

# Its search and its copy buttons are tried in Chromium, if there is one.
test-site: docs $(VENV)/.test  ## Build the site and check it: look-ups, copies, Markdown, no foreign host
	@$(BIN)/python -m pytest -q $(PYTEST_FLAGS) tests/docs/site_checks.py

bench: $(VENV)/.test  ## Measure against the machine's physical limits; writes benchmarks/results/
	@$(BIN)/python benchmarks/bench.py

dist:  ## Build the sdists and the wheels into dist/, twice, and check them
	@scripts/dist

clean:  ## Remove what the other targets made here
	rm -rf $(VENV) dist site .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis runs
