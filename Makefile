# `make help` lists the targets. Everything is installed into .venv on first use.
# An empty value of these is as none.
$(foreach name,PYTHON VENV SCALES MODEL ENGINES TRACE N REPEATS ATTACK_SECONDS,$(if $($(name)),,$(eval override undefine $(name))))
PYTHON ?= python3
VENV ?= .venv
SCALES ?= 0.4,0.8,1.6
CONCURRENCY ?=
MODEL ?= auto
ENGINES ?= auto
TRACE ?= builtin
N ?= $(if $(FIRST),40,100)
REPEATS ?= $(if $(FIRST),3,1)
OUT ?=
RUN ?=
ARGS ?=
ATTACK_SECONDS ?= 20

# Tests start hundreds of processes, and each would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE
# Tests wait for servers half of their time: twice as many workers as there are cores.
WORKERS = -n $(shell echo $$(( 2 * $$(nproc) ))) --maxprocesses 8

# Without an NVIDIA GPU, PyTorch without CUDA: 0.2 GB instead of 3. Where its index is out of reach, PyPI's.
TORCH_INDEX ?= $(if $(wildcard /dev/nvidiactl),,https://download.pytorch.org/whl/cpu)
INSTALL = python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt

BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEV := $(VENV)/.ready-dev
# Local copies of public traces: a search path. Tests that need one are skipped without it.
export BENCH_TRACES ?= $(realpath ../shared/traces)
# Without a GPU the first run is cut to what two engines keep up with on two cores, and short enough for three repeats.
FIRST = $(and $(filter auto,$(MODEL)),$(filter builtin,$(TRACE)),$(if $(wildcard /dev/nvidiactl),,yes))
FIT ?= $(if $(FIRST),--fit clip --max-model-len 256 --max-output-len 16)
WARMUP = $(if $(FIRST),--warmup 8)
COMMON = --model '$(MODEL)' --engines '$(ENGINES)' $(if $(OUT),--out '$(OUT)') $(ARGS)

.PHONY: setup dev help bench-online bench-offline bench-profile report test test-cluster test-unit attack coverage lint format dist clean
.PHONY: site diagrams walk published hashes
.DEFAULT_GOAL := setup

setup: $(READY) ## make .venv with what the commands below need

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(if $(TORCH_INDEX),@$(BIN)/$(INSTALL) --no-deps --retries 0 --timeout 5 --index-url '$(TORCH_INDEX)' torch 2>/dev/null || true)
	$(if $(CI),$(BIN)/$(INSTALL) --no-deps --require-hashes -r requirements-ci.txt)
	$(BIN)/$(INSTALL) -e '.[transformers,tune]'
	@touch $@

dev: $(DEV) ## add what tests, lint and the site need

$(DEV): $(READY)
	$(BIN)/$(INSTALL) -e '.[dev,docs]'
	@touch $@

help: ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'
	@echo "  variables: SCALES=$(SCALES) CONCURRENCY= MODEL=$(MODEL) ENGINES=$(ENGINES) TRACE=$(TRACE) FIT= N=$(N) REPEATS=$(REPEATS) OUT= RUN= ARGS="

bench-online: $(READY) ## replay TRACE at SCALES, or keep CONCURRENCY=1,8,64 in flight, against ENGINES; writes an HTML report
	$(BIN)/bench online $(if $(CONCURRENCY),--concurrency '$(CONCURRENCY)' --rounds 10,--scales '$(SCALES)' --trace '$(TRACE)' $(FIT) $(WARMUP)) --n $(N) --repeats $(REPEATS) $(COMMON)

bench-offline: $(READY) ## throughput of a fixed batch of prompts through ENGINES
	$(BIN)/bench offline --ignore-eos $(COMMON)

bench-profile: $(READY) ## profile the engines of RUN, each in a server of its own, and explain its gaps
	$(BIN)/bench profile $(RUN) $(ARGS)

report: $(READY) ## render RUN (one or several run folders) into one HTML file under reports/; without RUN only their index
	$(BIN)/bench report $(RUN)

test: $(DEV) ## run the test suite
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(WORKERS) $(ARGS)

test-cluster: $(DEV) ## run the tests of minutes on a Ray cluster, with its faults
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 0 -m cluster tests/harness/cluster $(ARGS)

published: $(DEV) ## render every published report: the same bytes as those in reports/, and their first screens
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(WORKERS) -m published tests/harness/report $(ARGS)

test-unit: $(DEV) ## run the quick tests that start no process and open no socket
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(WORKERS) -m 'unit and not slow and not published' $(ARGS)

ATTACKS = $(addprefix tests/roseinfer/server/,attack http process test_access.py test_engine_client.py openai/test_isolation.py openai/test_large_bodies.py)

attack: $(DEV) ## attack roseinfer's server, ATTACK_SECONDS with each fuzzer; ARGS=--write-table keeps the table
	OMP_NUM_THREADS=1 ATTACK_SECONDS=$(ATTACK_SECONDS) $(BIN)/python -m pytest -n 2 $(ATTACKS) $(ARGS)

walk: $(DEV) ## the first command and the tutorial in a new clone, word for word: some 15 minutes
	BENCH_WALK=1 $(BIN)/python -m pytest -n 0 -s tests/docs/test_walk.py $(ARGS)

coverage: $(DEV) ## coverage of the engine by its tests, in all its processes
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(WORKERS) tests/roseinfer --cov $(ARGS)

site: $(DEV) ## build the site of the documentation into build/site, with strict links and without a network
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

diagrams: $(DEV) ## draw the diagrams of docs/ for the site; needs Node.js
	$(BIN)/python -m scripts.site.diagrams

lint: $(DEV) ## ruff, mypy and the layers of the packages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(DEV) ## format the code
	$(BIN)/ruff format .

dist: $(DEV) ## build sdist and wheel into dist/
	$(BIN)/python -m build --no-isolation

hashes: ## write requirements-ci.txt: constraints.txt, but for torch, with the hash of every file that may be installed
	$(PYTHON) -m venv build/pip-tools
	build/pip-tools/bin/python -m pip install --quiet pip-tools
	build/pip-tools/bin/pip-compile --quiet --generate-hashes --unsafe-package torch --strip-extras --no-annotate --no-header --no-emit-options --output-file requirements-ci.txt constraints.txt

clean: ## remove .venv, builds and caches of tools; runs, reports and the user's cache folder stay
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
