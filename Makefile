# What the README names is what runs here, and what .ci/run runs. Every target sets up first.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup demo demo-train translate test check format

PY := .venv/bin/python
# Processes that the tests are spread over; each computes on one thread.
TEST_PROCESSES ?= 2
# Flags for pytest, such as -k exact
TEST_FLAGS ?=
SHELL_SCRIPTS = $(wildcard scripts/*.sh) scripts/average-checkpoints .ci/run

help:  ## say what there is
	@sed -nE 's/^([a-z-]+):.*  ## (.*)/make \1|\2/p' Makefile | column -t -s '|'

setup:  ## make .venv with the versions of constraints.txt (PYTHON=, TORCH_INDEX_URL=)
	@PYTHON="$(PYTHON)" TORCH_INDEX_URL="$(TORCH_INDEX_URL)" scripts/setup.sh

demo: setup  ## translate real sentences with the bundled pair of models, four ways
	@$(PY) scripts/demo.py

translate: setup  ## translate what you type, or a pipe: echo "Good morning." | make translate
	@$(PY) scripts/translate.py

demo-train: setup  ## train on the sample corpus and translate its held-out part four ways
	@$(PY) scripts/demo_train.py

test: setup  ## pass the tests (TEST_FLAGS='-k exact' for some)
	@echo "test: pytest in $(TEST_PROCESSES) processes"
	@OMP_NUM_THREADS=1 $(PY) -m pytest -n $(TEST_PROCESSES) $(TEST_FLAGS)

check: setup  ## look for faults without running anything: ruff, mypy, shellcheck
	@echo "check: ruff"
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@echo "check: mypy"
	@$(PY) -m mypy
	@echo "check: shellcheck"
	@.venv/bin/shellcheck --external-sources --source-path=SCRIPTDIR $(SHELL_SCRIPTS)

format: setup  ## lay the code out as check wants it
	@$(PY) -m ruff check --fix .
	@$(PY) -m ruff format .
