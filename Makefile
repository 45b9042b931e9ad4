# The two commands of a newcomer are `make demo` and `make test`; both set up .venv first, which takes a moment when it is there.

GEMCUT := .venv/bin/gemcut
PYTHON := .venv/bin/python

.DEFAULT_GOAL := help
.PHONY: help setup demo test check torture fix constraints clean

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## make or refresh .venv with the exact versions of constraints.txt
	@bash scripts/setup.sh

demo: setup ## the whole path on real logs: prepare, train, distill, export, gate, evaluate
	@$(GEMCUT) demo

test: check ## everything that has to pass before a change lands

check: setup ## format, lint, import contracts, types, tests; stops at the first kind that fails
	@$(PYTHON) scripts/check.py

torture: setup ## kill a training of two ranks twenty times: is it the one that was left alone? about seven minutes
	@$(PYTHON) -m benchmarks.torture

fix: setup ## write formatting, the lint fixes that are safe, and docs/project-file.md
	@$(PYTHON) -m ruff check --fix --exit-zero --quiet .
	@$(PYTHON) -m ruff format .
	@$(PYTHON) -m gemcut.reference

constraints: setup ## write the versions of .venv to constraints.txt
	@$(PYTHON) scripts/freeze.py

clean: ## remove what commands made in this folder, the environment too
	rm -rf .venv build *.egg-info .pytest_cache .ruff_cache .hypothesis
