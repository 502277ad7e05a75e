# `make help` lists the targets. Everything is installed from PyPI into .venv on first use.
PYTHON ?= python3
VENV ?= .venv
SCALES ?= 0.4,0.8,1.6
CONCURRENCY ?=
MODEL ?= auto
ENGINES ?= auto
TRACE ?= builtin
N ?= 100
OUT ?=
RUN ?=
ARGS ?=
ATTACK_SECONDS ?= 20

# Tests start hundreds of processes, and each would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE
WORKERS = -n logical --maxprocesses 8

BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Local copies of public traces: a search path. Tests that need one are skipped without it.
export BENCH_TRACES ?= $(realpath ../shared/traces)
COMMON = --model '$(MODEL)' --engines '$(ENGINES)' $(if $(OUT),--out '$(OUT)') $(ARGS)

.PHONY: setup help bench-online bench-offline bench-profile report test test-unit attack coverage lint format dist clean
.DEFAULT_GOAL := setup

setup: $(READY) ## make .venv with everything in it

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

help: ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'
	@echo "  variables: SCALES=$(SCALES) CONCURRENCY= MODEL=$(MODEL) ENGINES=$(ENGINES) TRACE=$(TRACE) N=$(N) OUT= RUN= ARGS="

bench-online: $(READY) ## replay TRACE at SCALES, or keep CONCURRENCY=1,8,64 in flight, against ENGINES; writes an HTML report
	$(BIN)/bench online $(if $(CONCURRENCY),--concurrency '$(CONCURRENCY)' --rounds 10,--scales '$(SCALES)' --trace '$(TRACE)') --n $(N) $(COMMON)

bench-offline: $(READY) ## throughput of a fixed batch of prompts through ENGINES
	$(BIN)/bench offline --ignore-eos $(COMMON)

bench-profile: $(READY) ## profile the engines of RUN, each in a server of its own, and explain its gaps
	$(BIN)/bench profile $(RUN) $(ARGS)

report: $(READY) ## render RUN (one or several run folders) into one HTML file under reports/
	$(if $(RUN),,$(error name the run: make report RUN=outputs/benchmarks/serving/online_…))
	$(BIN)/bench report $(RUN)

test: $(READY) ## run the test suite
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(WORKERS) $(ARGS)

test-unit: $(READY) ## run the quick tests that start no process and open no socket
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(WORKERS) -m 'unit and not slow' $(ARGS)

ATTACKS = $(addprefix tests/roseinfer/server/,attack http process test_access.py openai/test_isolation.py)

attack: $(READY) ## attack roseinfer's server, ATTACK_SECONDS with each fuzzer; ARGS=--write-table keeps the table
	OMP_NUM_THREADS=1 ATTACK_SECONDS=$(ATTACK_SECONDS) $(BIN)/python -m pytest -n 2 $(ATTACKS) $(ARGS)

coverage: $(READY) ## coverage of the engine by its tests, in all its processes
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(WORKERS) tests/roseinfer --cov $(ARGS)

lint: $(READY) ## ruff, mypy and the layers of the packages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY) ## format the code
	$(BIN)/ruff format .

dist: $(READY) ## build sdist and wheel into dist/
	$(BIN)/python -m build --no-isolation

clean: ## remove .venv, builds and caches of tools; runs, reports and the user's cache folder stay
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
