# Thin on purpose: each target calls a script that people and CI share.
.DEFAULT_GOAL := help
.PHONY: demo test lint clean help

demo: ## answer a prompt with and without speculation, and compare
	@scripts/demo

test: ## lint, types and all tests
	@scripts/test

lint: ## ruff and mypy only
	@scripts/lint

clean: ## remove .venv and caches (the built llama.cpp wheel is kept: see docs/how-to/install.md)
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage htmlcov build dist
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

help: ## list these targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## */  make \1\t/' | expand -t 16
