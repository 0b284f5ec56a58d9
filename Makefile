PYTHON ?= python

.PHONY: check docs lint types test

check: lint types test

lint:
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	lint-imports

types:
	$(PYTHON) -m mypy
	$(PYTHON) -m mypy --config-file examples/mypy.ini examples/*.py examples/models/*.py
	$(PYTHON) -m docs.typed_pages

docs:
	$(PYTHON) -m sphinx -q -W --keep-going -b html docs build/docs

test:
	$(PYTHON) -m pytest -q -n 2
