# Every target sets up what it needs in .venv, on a machine with Python 3.11 to 3.13 and make.
#
#   make train                            the default run; ARGS="advantage=rloo seed=1" changes it
#   make test                             lint, then the fast tests; ARGS="-k grpo" chooses
#   make slow                             the tests that `make test` leaves out
#   make parity                           models against transformers, adapters against PEFT, losses
#                                         against TRL and Tunix
#   make lint | format | wheel | clean

PYTHON ?= python3
ARGS ?=

BIN := .venv/bin
RUNTIME := .venv/.runtime
DEVELOPMENT := .venv/.development
PARITY := .venv/.parity

.DELETE_ON_ERROR:
.PHONY: train test slow parity lint format wheel clean

train: $(RUNTIME)
	$(BIN)/python -m rl4p.train $(ARGS)

# Two processes, since XLA compiles on one core; a file's tests stay together and share its fixtures.
test: lint
	$(BIN)/python -m pytest -n 2 --dist loadfile $(ARGS)

slow: $(DEVELOPMENT)
	$(BIN)/python -m pytest -n 2 --dist loadfile -m slow $(ARGS)

# A CPU build of torch serves, and is much smaller; pip's own settings say where to find one.
parity: $(PARITY)
	$(BIN)/python -m pytest -m parity tests/parity $(ARGS)

lint: $(DEVELOPMENT)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo --cache-dir .cache/import_linter
	$(BIN)/pyright --pythonpath $(BIN)/python

format: $(DEVELOPMENT)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

wheel: $(DEVELOPMENT)
	$(BIN)/python -m build

clean:
	rm -rf .venv .cache dist

$(RUNTIME): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' \
	  || { echo 'rl4p needs Python 3.11, 3.12 or 3.13, and "$(PYTHON)" is not one: make PYTHON=python3.12 names another.'; exit 1; }
	@echo 'Installing rl4p into .venv: once, a few minutes.'
	@test -x $(BIN)/pip || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(DEVELOPMENT): $(RUNTIME)
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

$(PARITY): $(DEVELOPMENT)
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[parity]'
	@touch $@
