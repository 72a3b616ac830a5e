# Two commands: `make run` and `make test`. Each sets up what it needs, and is quick when that is done.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: help run test check format docs setup clean

help: ## show this
	@grep -E '^[a-z]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 12

run: setup ## the main job: records through the death of a broker, and an audit
	@$(BIN)/kept demo

test: setup check ## every check and test that CI runs
	@$(BIN)/pytest

check: setup ## style and types, in seconds
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy

format: setup ## put the code into its form
	@$(BIN)/ruff check --fix --quiet .
	@$(BIN)/ruff format --quiet .

docs: setup ## write the generated pages anew
	@$(BIN)/python scripts/generate_docs.py

setup: ## virtual environment, packages, Java, jars
	@$(PYTHON) scripts/set_up.py

clean: ## remove what set-up made in this directory
	@rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis
