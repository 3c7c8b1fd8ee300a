# Two commands a newcomer needs: `make demo` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
FILES  := pyproject.toml constraints.txt
PYTEST := $(BIN)/python -m pytest -n 2

# Tests run in two processes and benchmarks compare single threads: more threads would only get in the way.
test test-all bench: export OPENBLAS_NUM_THREADS = 1
test test-all bench: export OMP_NUM_THREADS = 1

.PHONY: demo test test-all check bench clean

demo: $(VENV)/.demo
	$(BIN)/mast reproduce accuracy --fast

test: $(VENV)/.test
	$(PYTEST) -m "not slow"

test-all: $(VENV)/.test
	$(PYTEST)

check: $(VENV)/.check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.test
	$(BIN)/mast bench

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: $(VENV)/bin/python $(FILES)
	$(PIP) --editable ".[plots]"
	touch $@

$(VENV)/.test: $(VENV)/bin/python $(FILES)
	$(PIP) --editable ".[test]"
	touch $@

$(VENV)/.check: $(VENV)/bin/python $(FILES)
	$(PIP) --editable ".[test,check]"
	touch $@ $(VENV)/.test

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache
