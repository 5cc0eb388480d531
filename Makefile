# make demo   raw sample -> benchmark -> nightly over every enabled model -> report (a few minutes on a bare machine)
# make test   ruff, mypy, the import contract and pytest
PYTHON ?= python3.11
BIN := .venv/bin

.PHONY: demo test install clean

demo: .venv/installed
	$(BIN)/sdgbias demo

test: .venv/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest

install: .venv/installed-dev

# torch first and alone, so that the CPU build satisfies everything that comes after it
.venv/installed: pyproject.toml constraints.txt
	command -v $(PYTHON) >/dev/null || { echo "error: $(PYTHON) not found; install it or run: make PYTHON=python3 $(MAKECMDGOALS)"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt setuptools --editable .
	touch $@

.venv/installed-dev: .venv/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf results reports data/raw data/benchmark
