# `make help` explains every target. Everything is installed into this folder: .venv/ and build/.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMPS := build/stamps
ARGS ?=
# Tests run side by side on every core; make test PYTEST_ARGS="-n0 -k ledger" narrows them.
PYTEST_ARGS ?= -n auto --dist worksteal
export PYTHONDONTWRITEBYTECODE :=
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help run test check bench format coverage fakegpu sanitize proto lock clean

help: ## Say what each target does
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: $(STAMPS)/run fakegpu proto ## Start the playground, walk through the examples, stay up (ARGS=--exit: end after the walk)
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m gpushare playground $(ARGS)

test: $(STAMPS)/test fakegpu proto ## Run every test (PYTEST_ARGS=... narrows)
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pytest $(PYTEST_ARGS) --cov --cov-report= --cov-config=pyproject.toml
	@$(BIN)/python scripts/coverage_floor.py

check: $(STAMPS)/test proto ## Lint, types, import arrows
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	PYTHONPATH=src $(BIN)/lint-imports --no-cache
	$(BIN)/python scripts/house_rules.py

bench: $(STAMPS)/test fakegpu proto ## Measure, write build/figures/bench.json, compare with benchmarks/budgets.json
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m benchmarks $(ARGS)

format: $(STAMPS)/test ## Format the Python code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

fakegpu: ## Build the stand-in NVIDIA driver into build/fakegpu/
	@$(MAKE) --no-print-directory --silent -C fakegpu

sanitize: ## Build and run the C tests under the sanitizers
	@$(MAKE) --no-print-directory --silent -C fakegpu sanitize

proto: $(STAMPS)/run ## Generate the kubelet's gRPC stubs
	@$(BIN)/python scripts/generate_stubs.py

lock: $(STAMPS)/test ## Pin the requirements anew, with hashes
	$(BIN)/python -m pip install --quiet uv
	for name in product run test; do \
	  $(BIN)/uv pip compile --quiet --no-emit-index-url --generate-hashes --no-header --upgrade \
	    --python-version 3.11 requirements/$$name.in -o requirements/$$name.txt || exit 1; done

clean: ## Remove what was built and installed here
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage*

$(STAMPS)/venv:
	@PYTHON="$(PYTHON)" scripts/make-venv $(VENV)
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/run: $(STAMPS)/venv requirements/run.txt pyproject.toml
	@scripts/install-requirements $(BIN)/python requirements/run.txt
	@touch $@

$(STAMPS)/test: $(STAMPS)/run requirements/test.txt
	@scripts/install-requirements $(BIN)/python requirements/test.txt
	@touch $@
