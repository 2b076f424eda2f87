# Needs python3 (3.11 or newer, with venv and pip), make and git. Everything else comes from requirements.lock.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

# The first Python on PATH that is new enough and complete, and not one of an active environment.
PYTHON ?= $$(for python in $$(type -ap python3 python3.{11..14}); do if "$$python" -c '$(PROBE)' 2>/dev/null; then break; fi; done)
PROBE := import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11) or print(sys._base_executable))
BIN := $(CURDIR)/.venv/bin

export PATH := $(BIN):$(PATH)
export DAGSTER_DISABLE_TELEMETRY := yes
export DO_NOT_TRACK := 1
export GX_ANALYTICS_ENABLED := false
export NO_MKDOCS_2_WARNING := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export UV_HTTP_TIMEOUT ?= 180
export UV_NO_PROGRESS := 1
# Use this project's environment even inside another active one, and keep compiled modules, which saves start time.
unexport VIRTUAL_ENV PYTHONPATH PYTHONHOME PYTHONDONTWRITEBYTECODE

.PHONY: help venv demo test test-all bench crash fuzz bits faults ui docs lock clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */\1\t/'

venv: .venv/.stamp  ## the environment, as locked and hash-checked

# uv installs the locked set in seconds, pip in a minute. pip installs uv by the lock's hash, and installs the whole set
# itself if uv fails (for example with an index that only pip's configuration names). The lock is complete, so neither
# resolves versions.
.venv/.stamp: requirements.lock pyproject.toml
	@python="$(PYTHON)"; \
	if [[ -z $$python ]] || ! "$$python" -c '$(PROBE)' >/dev/null; then \
	  echo "Bardo needs Python 3.11 or newer, with venv and pip: make PYTHON=/where/it/is venv" >&2; exit 1; \
	fi; \
	echo "$$python -m venv .venv"; \
	"$$python" -m venv .venv
	@sed -n '/^uv==/,/^[^ ]/ { /^uv==/p; /^ .*--hash/p; }' requirements.lock > .venv/uv.lock
	$(BIN)/python -m pip install -qq --require-hashes --no-deps -r .venv/uv.lock || echo 'uv could not be fetched; pip goes on'
	$(BIN)/uv pip install -q --python $(BIN)/python --require-hashes --no-deps -r requirements.lock \
	  || $(BIN)/python -m pip install -q --require-hashes --no-deps -r requirements.lock
	$(BIN)/python -m pip install -qq --no-deps --no-build-isolation --no-index -e .
	$(BIN)/python -c 'import dagster, deltalake, duckdb, fastembed, lancedb, onnx, pydantic, bardo_pipeline.errors'
	@touch $@

demo: venv  ## a life, a death and an heir, end to end
	$(BIN)/bardo demo

test: venv  ## lint, format, types, import rules and the tests that are not marked full
	BARDO_EXAMPLES=$${BARDO_EXAMPLES:-0.2} .ci/check -m "not full"

test-all: venv  ## the same checks with every test and all examples, drawn anew; run it before a release
	.ci/check --hypothesis-profile=drawn

bench: venv  ## one table, each figure beside a peer measured in the same run
	$(BIN)/python -m benchmarks

crash: venv  ## kill processes 1,600 times and cut power 1,000 times: nothing acknowledged is lost or doubled
	$(BIN)/python -m tests.crash

fuzz: venv  ## 100,000 invalid records: each accepted and read back equal, or in quarantine with a reason
	$(BIN)/python -m tests.fuzz

bits: venv  ## flip 1,000 bits and cut 200 files: every command answers rightly or with a typed error
	$(BIN)/python -m tests.bits

faults: venv  ## one-line faults in the heartbeat, one by one: each is killed by a test that names its ledger row
	$(BIN)/python -m tests.faults

ui: venv  ## Dagster's own interface over this project
	$(BIN)/bardo ui

docs: venv  ## README, architecture and docs/ as a site in build/site; a broken link fails
	$(BIN)/mkdocs build --strict

lock: venv  ## resolve pyproject.toml again into requirements.lock, and the image's part into deploy/requirements.lock
	$(BIN)/uv pip compile -q pyproject.toml --all-extras --generate-hashes --python-version 3.11 -o requirements.lock
	$(BIN)/uv pip compile -q pyproject.toml --extra image -c requirements.lock --generate-hashes --python-version 3.11 \
	  -o deploy/requirements.lock

clean:  ## the environment and every cache, but never a home with a log in it
	rm -rf .venv build *.egg-info .pytest_cache .hypothesis .mypy_cache .ruff_cache .import_linter_cache dbt/target dbt/logs
	find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +
