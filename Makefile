# One command per task; `make help` lists them. Needs git, make and Python 3.11 or newer: the rest is installed here.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

VENV ?= .venv
# The interpreter for .venv; without one, .ci/python.sh chooses.
PYTHON ?=
BIN := $(VENV)/bin
# Test processes beside each other (pytest-xdist); 0 runs the tests in one process. `make test` has two more than
# the two cores that it is meant for: some tests wait for servers and sessions (tests/schedule.py has who does what).
WORKERS ?= 2
PARALLEL = -n $(WORKERS)
PYTEST_ARGS ?=

PACKAGES := api coordinator ltm changetables
SOURCES := $(PACKAGES) tests bench
# What ruff looks at: folders that exist.
LINTED = $(wildcard $(SOURCES))

VENV_STAMP := $(VENV)/.stamp-venv
FILE_LIST := $(VENV)/.package-files
# Beside the tree of links that the installation points to: whoever removes that removes these too.
BASE_STAMP := build/.stamp-base
DEV_STAMP := build/.stamp-dev
POSTGRES_STAMP := $(VENV)/.stamp-postgres
JAVA_STAMP := $(VENV)/.stamp-java

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1
# Tests start hundreds of processes: without bytecode on the disk each of them would compile the sources again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo install test check static lint types imports fast bench soak simulate format clean FORCE

help: ## this list
	@grep -hE '^[a-z]+:.*## ' $(firstword $(MAKEFILE_LIST)) | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/' | expand -t 18

demo: $(BASE_STAMP) ## install into .venv and show Viewtide at work (no PostgreSQL needed)
	$(BIN)/viewtide demo

install: $(DEV_STAMP) ## install into .venv with all that development needs

test: WORKERS = 4
test: $(DEV_STAMP) $(POSTGRES_STAMP) $(JAVA_STAMP) ## all tests, with full Hypothesis settings
	VIEWTIDE_TEST_PROFILE=full $(BIN)/python -m pytest $(PARALLEL) $(PYTEST_ARGS)

check: static fast ## lint, types, import rules and the fast tests: under two minutes

static: lint types imports ## lint, types and import rules

lint: $(DEV_STAMP) ## ruff, lint and format
	$(BIN)/ruff check $(LINTED)
	$(BIN)/ruff format --check $(LINTED)

# mypy reports paths inside the installed tree of links; the reader wants those of the repository.
types: $(DEV_STAMP) ## mypy, strict, on all packages
	$(BIN)/mypy | sed -E -e 's#^build/__editable__[^/]*/viewtide/((changetables|coordinator|ltm)/)#\1#' \
		-e 's#^build/__editable__[^/]*/viewtide/#api/#'

imports: $(DEV_STAMP) ## import-linter: the direction of imports, one module per library
	$(BIN)/lint-imports

fast: $(DEV_STAMP) ## the fast tests, with few Hypothesis examples
	VIEWTIDE_TEST_PROFILE=dev $(BIN)/python -m pytest $(PARALLEL) -m "not slow" $(PYTEST_ARGS)

bench: $(DEV_STAMP) $(POSTGRES_STAMP) $(JAVA_STAMP) ## the benches, with PostgreSQL as the peer
	$(BIN)/python -m bench $(BENCH_ARGS)

soak: $(DEV_STAMP) $(POSTGRES_STAMP) $(JAVA_STAMP) ## all tests with many more examples and crashes; takes long
	VIEWTIDE_SOAK=1 $(BIN)/python -m pytest $(PARALLEL) --timeout=3600 $(PYTEST_ARGS)
	VIEWTIDE_LTMS=3 VIEWTIDE_TEST_PROFILE=full $(BIN)/python -m pytest $(PARALLEL) --timeout=3600 $(PYTEST_ARGS)
	$(MAKE) --no-print-directory simulate

simulate: $(DEV_STAMP) ## thousands of seeds in the simulator; stopped, it goes on where it was
	mkdir -p build/soak
	for run in commit-long:7000 commit:2000 cluster:1000 views:1000 views-cluster:500 stored:500 stored-views:300 \
		catalog:300; do \
		$(BIN)/python -m tests.sim --scenario "$${run%:*}" --seeds "$${run#*:}" --first 100000 --jobs 2 \
			--progress "build/soak/$${run%:*}.json"; done

format: $(DEV_STAMP) ## rewrite the sources: ruff format and the safe fixes
	$(BIN)/ruff check --fix $(LINTED)
	$(BIN)/ruff format $(LINTED)

clean: ## remove the virtual environment and everything generated
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name '*.egg-info' -prune -exec rm -rf {} +
	find . -name __pycache__ -prune -exec rm -rf {} +

$(VENV_STAMP):
	python="$$(.ci/python.sh "$(PYTHON)")"; \
	.ci/system-packages.sh venv "$$python"; \
	"$$python" -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet "setuptools>=77"
	touch $@

# Strict editable mode (a tree of links) is what lets mypy see the mapped packages, and it does not see new files:
# this list is rewritten only when a file comes or goes, and the installation depends on it.
$(FILE_LIST): FORCE | $(VENV_STAMP)
	@find $(PACKAGES) -name __pycache__ -prune -o \( -name '*.py' -o -name py.typed \
		-o -name '*.thrift' -o -path '*/hbase/*' \) -print | LC_ALL=C sort > $@.new
	@if cmp -s $@.new $@; then rm $@.new; else mv $@.new $@; fi

$(BASE_STAMP): pyproject.toml $(FILE_LIST)
	rm -rf build
	$(BIN)/python -m pip install --quiet --no-build-isolation --config-settings editable_mode=strict -e .
	touch $@

$(DEV_STAMP): pyproject.toml $(FILE_LIST)
	rm -rf build
	$(BIN)/python -m pip install --quiet --no-build-isolation --config-settings editable_mode=strict -e '.[dev]'
	touch $@ $(BASE_STAMP)

$(POSTGRES_STAMP): | $(VENV_STAMP)
	.ci/system-packages.sh postgres
	touch $@

$(JAVA_STAMP): | $(VENV_STAMP)
	.ci/system-packages.sh java
	touch $@
