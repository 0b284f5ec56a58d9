PYTHON ?= python

.PHONY: check lint types test

check: lint types test

lint:
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	lint-imports

types:
	$(PYTHON) -m mypy

test:
	$(PYTHON) -m pytest -q -n 2
