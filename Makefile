# Everything a contributor runs. Each target sets up what it needs: `make test` works in a fresh clone.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV := .venv
BIN := $(CURDIR)/$(VENV)/bin
PYTEST_ARGS ?=
WORKERS ?= 2

# spark-submit of a PyPI pyspark finds its home only through PATH.
export PATH := $(BIN):$(PATH)
export VIRTUAL_ENV := $(CURDIR)/$(VENV)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# A Spark or Airflow that is installed elsewhere on the machine must not be mixed in.
unexport SPARK_HOME
unexport PYTHONPATH
unexport PYTHONHOME
# Airflow starts a Python for every task, and Spark one for every driver: without bytecode each compiles its imports again,
# for seconds, and what is measured here would not be what a deployment has.
unexport PYTHONDONTWRITEBYTECODE

MADE := $(VENV)/.made
LOCKED := $(VENV)/.locked
INSTALLED := $(VENV)/.installed

.PHONY: help setup check-java environments test test-fast contract lint imports simulate chaos mutants demo demo-s3 bench lock clean

help: ## Say what can be made.
	@sed -n 's/^\([a-z0-9-]*\):.* ## /\1\t/p' $(firstword $(MAKEFILE_LIST)) | expand -t 12

setup: check-java $(INSTALLED) ## Make .venv with the locked dependencies and this package, editable.

check-java:
	@scripts/check-java

$(MADE): requirements/bootstrap.txt
	@scripts/check-python $(PYTHON)
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes --only-binary :all: -r requirements/bootstrap.txt
	@touch $@

$(LOCKED): requirements/dev.txt $(MADE)
	$(BIN)/uv pip sync --quiet --compile-bytecode --require-hashes requirements/dev.txt
	@touch $@

$(INSTALLED): pyproject.toml tests/acme/pyproject.toml airflow_provider_microbatch/__init__.py $(LOCKED)
	$(BIN)/uv pip install --quiet --no-deps --no-build-isolation --editable . --editable tests/acme
	@touch $@

# Work folders in memory, where there is so much room (in KiB): a third of the fast tests' time is a disk's fsync. That it
# is called, and in which order, tests hold by watching it; what it does when the power goes no test can see on a disk.
in_memory = room=$$(df -kP /dev/shm 2>/dev/null | awk 'NR == 2 { print $$4 }' || true); \
	if (( $${room:-0} > $(1) )); then export TMPDIR=/dev/shm; fi
KEPT := -o tmp_path_retention_policy=failed

test: setup environments imports ## Hold the layers (import-linter) and run the whole test suite.
	# One worker more than compute: for minutes one of them waits for what Airflow's scheduler does.
	$(call in_memory,10000000); $(BIN)/python -m pytest -n $$(( $(WORKERS) + 1 )) $(KEPT) $(PYTEST_ARGS)

# What runs in this process alone: no JVM, no database, no scheduler. For the inner loop; `make test` is the whole.
FAST := -m "not spark and not airflow and not exchange and not slow and not asked_for" --ignore=tests/scheduler --ignore=tests/demo
test-fast: $(INSTALLED) ## Run the tests without Spark, Airflow and databases: under two minutes.
	$(call in_memory,1000000); $(BIN)/python -m pytest -q -n $(WORKERS) $(KEPT) $(FAST) $(PYTEST_ARGS)

contract: $(INSTALLED) ## Run the contract suites and print which system passes which case (SYSTEM=posix for one).
	@$(BIN)/python -m tests.contract $(if $(SYSTEM),--system "$(SYSTEM)") $(PYTEST_ARGS)

environments: $(INSTALLED) ## Make the Python environments that tests need beside .venv.
	@$(BIN)/python -m tests.environments

imports: $(INSTALLED)
	$(BIN)/lint-imports

lint: $(INSTALLED) imports ## Check style (ruff), types (mypy --strict) and layers (import-linter).
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict

SECONDS ?= 60
simulate: $(INSTALLED) ## Live through seeded worlds for SECONDS=… (SEED=…, SYSTEM=…) and shrink what breaks a promise.
	$(BIN)/python -m tests.simulator --seconds $(SECONDS) $(if $(SEED),--seed $(SEED)) $(if $(SYSTEM),--system $(SYSTEM))

N ?= 1000
CHAOS_ARGS ?=
chaos: setup ## Kill tasks, Spark, scheduler… N times (SEED=…, SYSTEM=…) and check that no row is lost or doubled.
	$(BIN)/python -m tests.chaos --kills $(N) $(if $(SEED),--seed $(SEED)) $(if $(SYSTEM),--system $(SYSTEM)) $(CHAOS_ARGS)

mutants: $(INSTALLED) ## Break the code in every listed way and see which test catches it.
	$(call in_memory,4000000); $(BIN)/python -m tests.mutants

demo: setup ## Run a real Airflow and Spark: orders land, micro-batches take them to the lake.
	@$(BIN)/python -m demo

demo-s3: setup ## The same on Celery workers that share no disk, with all data in a bucket; as root, on Linux, with Redis.
	@$(BIN)/python -m demo --s3

# Made into environments of their own by tests/environments.py.
OTHER_SPARKS := $(patsubst requirements/pyspark-%.txt,%,$(wildcard requirements/pyspark-*.txt))
bench: setup ## Measure ratios against peers in the same run (ROW=P7 for one row).
	@$(BIN)/python -m benchmarks $(ROW)

COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header
# What Spark's processors of state need in Python, as locked for the Spark of the package.
FOR_PROCESSORS := sed -nE 's/^((pandas|protobuf|pyarrow)==[^ ]+).*/\1/p' requirements/dev.txt
lock: $(MADE) ## Resolve requirements/*.txt again (UPGRADE=--upgrade for newer versions).
	$(COMPILE) $(UPGRADE) requirements/bootstrap.in -o requirements/bootstrap.txt
	$(COMPILE) $(UPGRADE) pyproject.toml requirements/dev.in -o requirements/dev.txt
	$(COMPILE) $(UPGRADE) pyproject.toml requirements/docker.in -c requirements/dev.txt -o requirements/docker.txt
	$(COMPILE) $(UPGRADE) requirements/compose.in --override requirements/compose-overrides.in -o requirements/compose.txt
	for version in $(OTHER_SPARKS); do \
	    { echo pyspark==$$version; $(FOR_PROCESSORS); } | \
	        $(COMPILE) --no-annotate - -o requirements/pyspark-$$version.txt; \
	done

clean: ## Remove everything that was made here.
	rm -rf $(VENV) .environments build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
