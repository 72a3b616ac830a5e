# Two commands: `make run` and `make test`. Each sets up what it needs, and is quick when that is done.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: help run test test-all prove prove-spark prove-outbox prove-crashes check format docs setup clean

help: ## show this
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 16

run: setup ## the main job: payments under each guarantee through two crashes, and an audit
	@$(BIN)/kept demo

test: setup check ## every check, and every test that is not slow: what CI runs
	@$(PYTHON) scripts/set_up.py --browser
	@$(BIN)/python scripts/run_tests.py

test-all: setup check ## every test, the slow ones too
	@$(PYTHON) scripts/set_up.py --browser
	@$(BIN)/python scripts/run_tests.py --all

prove: setup ## every scenario of faults against guarantees, in full; docs/proof.md is its verdicts (MINUTES=9: a piece)
	@$(BIN)/python scripts/prove.py $(if $(MINUTES),--minutes $(MINUTES))

prove-spark: setup ## nine minutes of faults against pipelines on Spark; again, until nothing is left
	@$(BIN)/python -m tests.spark.proof

prove-outbox: setup ## both outboxes: senders, relays and brokers killed, and every record counted (SEEDS=6: fewer)
	@$(BIN)/python -m tests.brokers.outbox_proof --seeds $(or $(SEEDS),50)
	@$(BIN)/python -m tests.brokers.postgres_outbox_proof --seeds $(or $(SEEDS),50)

prove-crashes: setup ## kill -9 of consumers and processors at named points, under each guarantee, into both sinks
	@KEPT_SEEDS=$(or $(SEEDS),20) $(BIN)/python -m pytest -k "seeds_of_deaths or kill_at_any_point or killed_at_named" \
		tests/brokers/test_crashes.py tests/brokers/test_into_kafka.py tests/brokers/test_into_postgres_faults.py

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
