# The README and .ci/run use these targets. Every target runs setup first.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup demo demo-train translate test check format wheel bench bench-gpu

PY := .venv/bin/python
# Processes for the tests; each computes on one thread.
TEST_PROCESSES ?= 2
# Flags for pytest, such as -k exact
TEST_FLAGS ?=
# `make bench`: PAIR is a bundle or a folder with verifier.pt and drafter.pt; TEST is a TSV of raw
# parallel text, or SOURCE,TARGET; RESULT is the prefix of the output files.
PAIR ?= data/models/en-de-small
TEST ?= data/samples/en-de.tsv
RESULT ?= benchmarks/results/$(notdir $(PAIR:/=)).$(basename $(notdir $(TEST)))
BENCH = $(PY) -m benchmarks --pair $(PAIR) --test $(TEST) --batch-rows '* greedy' 'ours exact'
# The rows that the README compares; all of them: BENCH_FLAGS='--threads 2 --batches 1 16'. Only
# greedy decoding and SpecDec are measured in batches.
BENCH_FLAGS ?= --threads 2 --batches 1 16 --sentences 20 --rows '* greedy' 'published *' 'ours exact' 'ours relaxed*'
BENCH_GPU_FLAGS ?= --threads 2 --batches 1 4 8 16 32 64 --dtypes float32 float16

SHELL_SCRIPTS = $(wildcard scripts/*.sh) .ci/run

help:  ## say what there is
	@sed -nE 's/^([a-z-]+):.*  ## (.*)/make \1|\2/p' Makefile | column -t -s '|'

setup:  ## make .venv with the versions of constraints.txt (PYTHON=, TORCH_INDEX_URL=)
	@PYTHON="$(PYTHON)" TORCH_INDEX_URL="$(TORCH_INDEX_URL)" scripts/setup.sh

demo: setup  ## translate real sentences with the bundled pair of models and by fairseq
	@$(PY) scripts/demo.py

translate: setup  ## translate what you type, or a pipe: echo "Good morning." | make translate
	@$(PY) -m specdec_plugins.cli translate --quiet

SAMPLE := data/sample
demo-train: setup  ## train on the sample corpus and translate its held-out part
	@scripts/recipe.sh --preset demo --set drafter_hours=0.15 --out runs/demo-train \
	  --train $(SAMPLE)/train.en,$(SAMPLE)/train.de --valid $(SAMPLE)/dev.en,$(SAMPLE)/dev.de
	@$(PY) scripts/demo.py runs/demo-train/bundle --test $(SAMPLE)/test.en,$(SAMPLE)/test.de

test: setup  ## pass the tests (TEST_FLAGS='-k exact' for some)
	@echo "test: pytest in $(TEST_PROCESSES) processes"
	@OMP_NUM_THREADS=1 $(PY) -m pytest -n $(TEST_PROCESSES) --dist worksteal $(TEST_FLAGS)

# The kernels choose their instruction set at run time, and torch has OpenMP's library.
wheel: setup  ## build a wheel for this Python and systems as old as this one into wheels/
	@rm -rf build && env -u CFLAGS -u CXXFLAGS $(PY) -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir build/wheel .
	@PATH="$(dir $(PY)):$$PATH" $(PY) -m auditwheel repair --exclude libgomp.so.1 --wheel-dir wheels build/wheel/specdec-*.whl

bench: setup  ## every engine side by side, on the small pair or on PAIR= and TEST= (RESULT=, BENCH_FLAGS=)
	@$(BENCH) --output $(RESULT) $(BENCH_FLAGS)

bench-gpu: setup  ## every engine side by side on a GPU (BENCH_GPU_FLAGS=)
	@$(BENCH) --output $(RESULT).gpu --device cuda $(BENCH_GPU_FLAGS)

check: setup  ## look for faults without running anything: ruff, mypy, shellcheck, workflows, docs
	@echo "check: ruff"
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@echo "check: mypy"
	@$(PY) -m mypy
	@echo "check: shellcheck"
	@.venv/bin/shellcheck --external-sources --source-path=SCRIPTDIR $(SHELL_SCRIPTS)
	@echo "check: workflows"
	@.venv/bin/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml
	@.venv/bin/zizmor --offline --quiet --strict-collection .github
	@echo "check: docs"
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict 2>&1 | { grep -v ^INFO || true; }

format: setup  ## lay the code out as check wants it
	@$(PY) -m ruff check --fix .
	@$(PY) -m ruff format .
