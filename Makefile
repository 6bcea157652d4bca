# Every target builds .venv first when it is missing or older than the lock; `make` alone lists them.
# PYTHON=/path/to/python3.12 chooses the interpreter, at the time when .venv is made.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.PHONY: help demo test test-spark test-long check format cluster-tests proto release-contract faces lock bench bench-groups clean venv
# Two goals at once (`make -j test demo`) would share ports, cores and .venv.
.NOTPARALLEL:

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
UV := $(shell uv --version >/dev/null 2>&1 && command -v uv)
PYTHON ?=
# As many processes as there are cores; whoever has nothing left takes from the others.
IN_PARALLEL := --numprocesses logical --dist worksteal
# A test that is listed is to be marked `long`, so that `make test` stays short.
SLOW_ONES := --durations 20 --durations-min 4
# Tests start hundreds of commands and nodes, each of which would compile every module again.
unexport PYTHONDONTWRITEBYTECODE
PYTHONS := python3 python3.14 python3.13 python3.12 python3.11 python

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' Makefile

demo: $(STAMP) ## the main job: three nodes, 27,004 flights, two Spark stages, everything verified
	@$(BIN)/hadron demo

test: $(STAMP) ## units, simulator, the short part of cluster-tests/, on all cores: ten minutes on two
	$(BIN)/python -m pytest -m "not (long or spark)" $(IN_PARALLEL) $(SLOW_ONES)

test-spark: $(STAMP) ## the shorter tests on a real Spark: four minutes
	$(BIN)/python -m pytest -m "spark and not long" hadron $(IN_PARALLEL)

test-long: $(STAMP) ## what takes longer: Spark, each test of seconds, a hundred seeds twice, planted bugs
	$(BIN)/python -m pytest -m "long or spark" hadron $(IN_PARALLEL)

check: $(STAMP) ## lint, types, rooms, the lock, and whether the generated code is fresh
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy hadron $(wildcard cluster-tests/*.py)
	$(BIN)/lint-imports
	@if grep -n '://' requirements.lock; then \
	    echo "requirements.lock names a host (above): run 'make lock'" >&2; exit 1; fi
	$(BIN)/python -m pytest -q hadron/wire/tests/test_generated.py \
	    hadron/wire/tests/test_contract.py \
	    hadron/client/blocking/tests/test_faces.py

format: $(STAMP) ## lay the code out, as `make check` wants it
	$(BIN)/python -m ruff check --fix --select I --quiet .
	$(BIN)/python -m ruff format .

cluster-tests: $(STAMP) ## all tests on real processes, the long ones too
	$(BIN)/python -m pytest cluster-tests

# The generated modules live inside the package, so their imports of one another move with them.
# hadron/wire/tests/test_generated.py follows the same recipe.
proto: $(STAMP) ## regenerate hadron/wire/_pb from proto/
	@rm -rf build/proto && mkdir -p build/proto
	$(BIN)/python -m grpc_tools.protoc -Iproto --python_out=build/proto --pyi_out=build/proto \
	    proto/hadron/v1/*.proto
	@rm -rf hadron/wire/_pb && mkdir -p hadron/wire/_pb && : > hadron/wire/_pb/__init__.py
	@for file in build/proto/hadron/v1/*; do \
	    sed 's/^from hadron\.v1 import/from hadron.wire._pb import/' "$$file" \
	        > "hadron/wire/_pb/$${file##*/}" || exit 1; done
	@rm -rf build/proto

release-contract: $(STAMP) ## promise proto/ as it is: proto/released.json, which `make check` holds it to
	$(BIN)/python -m hadron.wire.contract

faces: $(STAMP) ## regenerate hadron/client/blocking/faces from the async classes
	$(BIN)/python -m hadron.client.blocking.generate

# `--upgrade` is left to the caller: make lock LOCK_FLAGS=--upgrade
lock: $(if $(UV),,$(STAMP)) ## compile requirements.lock from pyproject.toml
	$(or $(UV),$(BIN)/uv) pip compile pyproject.toml --output-file requirements.lock --quiet \
	    --no-config --universal --python-version 3.11 --all-extras --generate-hashes \
	    --no-emit-index-url --no-emit-find-links --custom-compile-command 'make lock' $(LOCK_FLAGS)

bench: $(STAMP) ## measure a cluster of three nodes on this machine
	@$(BIN)/hadron bench

# Options: make bench-groups BENCH_FLAGS="--quick --nodes 1"
bench-groups: $(STAMP) ## measure consumer groups, and judge them (some ten minutes)
	@$(BIN)/hadron bench groups $(BENCH_FLAGS)

venv: $(STAMP) ## .venv from the hash-locked requirements.lock, by uv if there is one, else by pip

clean: ## remove .venv, caches and build products
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	rm -rf .coverage htmlcov spark-warehouse metastore_db derby.log
	find hadron $(wildcard cluster-tests) -name __pycache__ -type d -prune -exec rm -rf {} +

# ---- .venv --------------------------------------------------------------------------------------

# Prints the interpreter to use: PYTHON if it is given, else the first that will do. Without uv it
# takes ensurepip too, which Debian keeps in a package of its own.
define find_python
found=; needs='import sys; assert sys.version_info >= (3, 11)$(if $(UV),,; import ensurepip, venv)'; \
for python in $(or $(PYTHON),$(PYTHONS)); do \
    if "$$python" -c "$$needs" >/dev/null 2>&1; then found=$$python; break; fi; done; \
if [ -z "$$found" ]; then \
    for python in $(or $(PYTHON),$(PYTHONS)); do \
        if "$$python" -c 'import sys; assert sys.version_info >= (3, 11)' >/dev/null 2>&1; then \
            echo "$$python is new enough but cannot make virtual environments: it has no" \
                "ensurepip. Install it (Debian, Ubuntu: apt-get install python3-venv), or" \
                "install uv, or name another interpreter: make PYTHON=/path/to/python3" >&2; \
            exit 1; fi; done; \
    echo "Hadron needs Python 3.11 or newer, and found none (tried:" \
        "$(or $(PYTHON),$(PYTHONS))). Install one, or name it: make PYTHON=/path/to/python3" >&2; \
    exit 1; fi
endef

ifneq ($(UV),)
make_venv = "$(UV)" venv --quiet --clear --python "$$found" $(VENV)
venv_works = $(BIN)/python -c ''
install = "$(UV)" pip install --no-config --python $(BIN)/python
else
make_venv = "$$found" -m venv --clear $(VENV)
venv_works = $(BIN)/python -m pip --version
# --use-pep517: pyspark has a setup.py only; this way pips of every age build it by one interface.
install = $(BIN)/python -m pip install --disable-pip-version-check --use-pep517
endif

# pyspark is published as source only. Its builder comes from the lock too, so it is installed
# first and nothing is built in isolation: an isolated build would fetch it without a hash.
$(STAMP): requirements.lock pyproject.toml
	@set -e; if ! $(venv_works) >/dev/null 2>&1; then \
	    $(find_python); \
	    echo "Making $(VENV) with $$found (pyspark alone is a download of 456 MB, once)"; \
	    $(make_venv); fi
	@awk '/^[A-Za-z0-9]/ {keep = /^setuptools==/} keep' requirements.lock > $(VENV)/builder.lock
	$(install) --require-hashes -r $(VENV)/builder.lock
	$(install) --require-hashes --no-build-isolation -r requirements.lock
	$(install) --no-deps --no-build-isolation --editable .
	@touch $@
