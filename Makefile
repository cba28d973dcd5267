# make demo: a whole release on a laptop. make test, make lint, make bench: for those who change it.
# Each sets up what it needs: Python 3.11 or newer, git and make are enough. Options for the demo's
# release: make demo ARGS="--set publish.to=hub".
PYTHON ?= python3.11
VENV ?= .venv
# One build of torch for everyone, so that pip does not choose between CPU and CUDA builds.
TORCH ?= torch==2.13.0
BIN := $(VENV)/bin
export OMP_NUM_THREADS ?= 1
export DO_NOT_TRACK ?= 1

# What needs root, a Docker engine or a browser, and what takes minutes; CI runs it too.
.PHONY: demo test test-services lint bench setup clean

demo: setup
	$(BIN)/quantgate release deployments/demo/release.yaml $(ARGS)

test: setup
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile \
		-m "not long and not gpu and not docker and not browser and not slow"

test-services: setup
	$(BIN)/python -m pytest -m "(docker or browser or slow) and not long and not gpu"

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: setup
	$(BIN)/python -m pytest tests/bench -m "" -s

setup: $(VENV)/installed

$(VENV)/installed: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet "$(TORCH)"
	$(BIN)/python -m pip install --quiet --editable ".[quantize,dev]"
	touch $@

clean:
	rm -rf $(VENV)
