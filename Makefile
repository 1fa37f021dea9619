# Everything sets itself up: `make demo` and `make test` need Python 3.11 or 3.12 and make, nothing else.
PYTHON ?= $(shell command -v python3.12 >/dev/null 2>&1 && python3.12 -c '' >/dev/null 2>&1 && echo python3.12 || echo python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PEERS := .venv-differential

.PHONY: setup demo test test-deep prove differential lint types bench clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $(READY)

demo: setup
	$(BIN)/python examples/demo.py

test: setup
	$(BIN)/python -m pytest -n 2 -m "not deep and not prove and not cuda"

test-deep: setup
	$(BIN)/python -m pytest -n 2 -m "not prove and not cuda"

# The acceptance of training: five seeds, with and without an edge. About a quarter of an hour on two cores.
prove: setup
	$(BIN)/python -m pytest -s -m prove

# The tests against other people's simulators, whose pins clash with ours: they run in an environment of their own.
differential: setup $(PEERS)/.ready
	$(BIN)/python -m pytest -n 2 -m differential

$(PEERS)/.ready: tests/differential/requirements.txt
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check --requirement tests/differential/requirements.txt
	touch $(PEERS)/.ready

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

# The tools to compare with come along here; the project itself never needs them.
bench: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,peers]'
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) $(PEERS) build dist *.egg-info
