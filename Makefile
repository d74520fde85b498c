# make quickstart: install and run the main job here.   make test: install the tools, check and test everything.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# pip compiles what it installs; an editable install leaves this package out. Where writing bytecode is switched off, each start
# would otherwise compile all that it imports again. Where there is a compiler, the kernels of serving are made too.
COMPILE := $(BIN)/python -m compileall -q src/steelyard && \
	$(BIN)/python -c 'from steelyard.serve.running.native.library import compile_ahead; compile_ahead()'
ARGS ?=

.PHONY: quickstart test lint format docs bench clean
.DEFAULT_GOAL := quickstart

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) install --quiet -c constraints.txt -e .
	$(COMPILE)
	@touch $@

# cyclopts wants docstring_parser and pydoclint its fork, which has the same module name and more in it: the fork goes last.
$(VENV)/.installed-dev: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) install --quiet -c constraints.txt -e '.[dev]'
	$(PIP) install --quiet -c constraints.txt --force-reinstall --no-deps docstring_parser_fork
	$(COMPILE)
	@touch $@ $(VENV)/.installed

quickstart: $(VENV)/.installed
	$(BIN)/steelyard quickstart $(ARGS)

test: lint
	$(BIN)/pytest -n 2 --dist loadfile $(ARGS)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/basedpyright
	$(BIN)/pydoclint --quiet src
	git ls-files -z | xargs -0 $(BIN)/codespell
	$(BIN)/lint-imports

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.installed-dev
	$(BIN)/python docs/generate.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks all --quick

clean:
	rm -rf $(VENV) .peers site build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
