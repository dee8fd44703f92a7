# Needs GNU make and Python 3.11 or newer; everything else is installed into .venv with pip.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
DEMO_OUTPUT := demo.mp4

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow verify check format clean

help: ## Say what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.installed-dev ## Make .venv with everything that development needs

demo: $(VENV)/.installed ## Generate a clip with the built-in model
	$(BIN)/ostinato generate "a red circle bouncing on a navy background" \
	    --seed 7 --num-frames 96 --output $(DEMO_OUTPUT)
	@echo "The clip is $(CURDIR)/$(DEMO_OUTPUT)"

test: $(VENV)/.installed-dev ## Run the default test suite
	$(BIN)/python -m pytest

test-slow: $(VENV)/.installed-dev ## Run the long tests
	$(BIN)/python -m pytest -m slow

verify: $(VENV)/.installed-dev ## Hold every family to its gates, on small folders
	$(BIN)/ostinato verify --all-tiny

check: $(VENV)/.installed-dev ## Format, lint, types, layers, spelling
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/codespell

format: $(VENV)/.installed-dev ## Reformat and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean: ## Remove .venv, caches and builds
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	rm -rf src/*.egg-info $(DEMO_OUTPUT)
	find src tests -type d -name __pycache__ -prune -exec rm -rf {} +

# The stamps make the second call quick; they are older than what they were made from when a
# dependency changes.
$(VENV)/.installed: pyproject.toml constraints.txt $(VENV)/.created
	$(PIP) install -c constraints.txt -e .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt $(VENV)/.created
	$(PIP) install -c constraints.txt -e ".[dev]"
	@touch $(VENV)/.installed $@

$(VENV)/.created:
	@for python in "$(PYTHON)" python3.11 python3.12 python3.13 python3.14; do \
	    if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	        echo "Making $(VENV) with $$("$$python" --version) ($$python)"; \
	        "$$python" -m venv $(VENV) && touch $@; \
	        exit; \
	    fi; \
	done; \
	echo "No Python 3.11 or newer is on the path (tried $(PYTHON), python3.11 to python3.14)." >&2; \
	echo "Install one, or name it: make setup PYTHON=/path/to/python3" >&2; \
	exit 1
