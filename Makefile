# Two commands a newcomer needs: `make demo` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
OLDEST := .venv-oldest
PIP    := python -m pip install --quiet --disable-pip-version-check --constraint
FILES  := pyproject.toml constraints.txt
FAULTS := $(patsubst %,tests/test_%.py,interruptions limits resume trace) tests/support
PYTEST := python -m pytest -n 2 --dist worksteal

# Tests run in two processes and benchmarks compare single threads: more threads would only get in the way.
test test-all test-oldest faults bench: export OPENBLAS_NUM_THREADS = 1
test test-all test-oldest faults bench: export OMP_NUM_THREADS = 1
# Many tests start Python anew; without bytecode on disk each of them would compile MAST again.
test test-all test-oldest faults: export PYTHONDONTWRITEBYTECODE =

.PHONY: demo test test-all test-oldest faults check bench docs wheel release audit clean

demo: $(VENV)/.demo
	$(BIN)/mast reproduce demo --fast

test: $(VENV)/.test
	$(BIN)/$(PYTEST) -m "not slow"

test-all: $(VENV)/.test
	$(BIN)/$(PYTEST)

# The lowest versions that pyproject.toml promises, in an environment of their own.
test-oldest: $(OLDEST)/.test
	$(OLDEST)/bin/$(PYTEST) -m "not slow"

# Kills, damage, full disks and strange files, a thousand of each; `make test` runs a small form.
# It ends with a table of what was tried and survived, which docs/reliability.md shows.
faults: export MAST_FAULTS = full
faults: export MAST_FAULTS_TALLY = $(CURDIR)/build/faults.jsonl
faults: $(VENV)/.test
	mkdir -p build && rm -f $(MAST_FAULTS_TALLY)
	$(BIN)/$(PYTEST) tests/faults tests/cluster tests/federated $(FAULTS)
	$(BIN)/python tests/faults/tally.py $(MAST_FAULTS_TALLY)

check: $(VENV)/.check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# make bench AREAS="linear learn": some files of benchmarks/ only
bench: $(VENV)/.bench
	$(BIN)/python benchmarks $(AREAS)

docs: export NO_MKDOCS_2_WARNING = 1  # an advertisement of the theme's makers
docs: $(VENV)/.docs
	$(BIN)/mkdocs build --strict

wheel: $(VENV)/.release
	$(BIN)/python -m build --outdir dist

# Builds, then installs what was built into empty environments and tries it there.
release: wheel $(VENV)/.test
	MAST_DIST=dist $(BIN)/python -m pytest -m "slow or not slow" tests/release

# Known vulnerabilities of the versions that MAST is tested with; fails where the advisories cannot be reached.
audit: $(VENV)/.release
	$(BIN)/pip-audit --strict --disable-pip --no-deps --requirement constraints.txt

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: $(VENV)/bin/python $(FILES)
	$(BIN)/$(PIP) constraints.txt --no-compile --editable ".[plots,nn]"  # compiles what it imports, which is less
	touch $@

$(VENV)/.test: $(VENV)/bin/python $(FILES)
	$(BIN)/$(PIP) constraints.txt --editable ".[test]"
	touch $@

$(VENV)/.check: $(VENV)/bin/python $(FILES)
	$(BIN)/$(PIP) constraints.txt --editable ".[test,check]"
	touch $@ $(VENV)/.test

$(VENV)/.bench: $(VENV)/bin/python $(FILES)
	$(BIN)/$(PIP) constraints.txt --editable ".[bench]"
	touch $@ $(VENV)/.test

$(VENV)/.docs: $(VENV)/bin/python $(FILES)
	$(BIN)/$(PIP) constraints.txt --editable ".[docs]"
	touch $@

$(VENV)/.release: $(VENV)/bin/python $(FILES)
	$(BIN)/$(PIP) constraints.txt --editable ".[release]"
	touch $@

$(OLDEST)/.test: pyproject.toml oldest.txt
	$(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/$(PIP) oldest.txt --editable ".[test]"
	touch $@

clean:
	rm -rf $(VENV) $(OLDEST) build dist site .mypy_cache .ruff_cache .pytest_cache
