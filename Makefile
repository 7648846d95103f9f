# Everything runs in .venv, which is made from nothing and made again when what it is made from changes.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: demo test test-slow lint bench clean

demo: $(READY)
	$(BIN)/indrnn demo

test: lint
	$(BIN)/python -m pytest -n auto -m "not slow"

test-slow: lint
	$(BIN)/python -m pytest -m slow

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)
	$(BIN)/python -m benchmarks.layer

# torch first, by itself: it is pinned there, and nothing later may pull in another.
$(READY): pyproject.toml CMakeLists.txt constraints.txt $(wildcard src/indrnn/*/*.cpp src/indrnn/*/*/*.cpp src/indrnn/*/*/*.h)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "indrnn needs Python 3.11 or newer: make PYTHON=...")'
	test -x $(BIN)/pip || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt torch
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[dev]"
	touch $(READY)

clean:
	rm -rf .venv build dist
