# make demo: train all nine rules on the embedded data and compare them (ebl study run quick).   make test: linter, types, tests.
PYTHON ?= python3
TORCH ?= torch==2.13.0
TRITON ?= triton==3.6.0
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test lint install clean

install: $(VENV)/installed

$(VENV)/installed: pyproject.toml Makefile
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed: make PYTHON=python3.12 ..."; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "$(TORCH)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[dev]"
	$(BIN)/python -c "import triton" 2>/dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps "$(TRITON)" || echo "without Triton: the tests of its kernels are skipped"
	touch $@

demo: install
	$(BIN)/ebl study run quick

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/pytest -n 2

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis *.egg-info
