# Two commands: make demo, make test. Everything else is for those who work on it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q

SIMULATED := --gpu "H100 80 GB (simulated)" --network "NVLink (simulated)" \
	--note "simulated pods: profile h100-llama3.1-8b of loadtest/engine under the virtual clock" \
	--note "python -m loadtest.virtual_profile -o build/simulated && ppd-gateway lut build build/simulated/*.jsonl"

.PHONY: demo test unit lint format docs vllm-env rehearse table paper slo clean

$(VENV)/installed: pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; set PYTHON=..."; exit 1; }
	@echo "installing into $(VENV) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install -c requirements.lock -e '.[dev]'
	@touch $@

demo: $(VENV)/installed
	@$(BIN)/python -m loadtest.demo $(ARGS)

lint: $(VENV)/installed
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: $(VENV)/installed
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

vllm-env: $(VENV)/installed
	@$(BIN)/python -m loadtest.vllm_cpu env

test: lint
	@$(BIN)/python -m tests.redis_server
	@$(BIN)/python -m tests.prometheus_server
	@$(BIN)/python -m tests.browser
	@$(BIN)/python -m tests.run tests --ignore=tests/vllm -q
	@$(BIN)/python -m deploy.docker.rehearse --quiet
	@PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m tests.run_vllm

# The tests that start no process and open no connection: for while one edits.
unit: $(VENV)/installed
	@$(BIN)/python -m tests.unit -q $(ARGS)

docs: $(VENV)/installed
	@$(BIN)/python -m gateway.ops.reference docs

# The Dockerfile's own instructions in a folder, where there is no Docker; about half a minute.
rehearse: $(VENV)/installed
	@$(BIN)/python -m deploy.docker.rehearse --quiet

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache

# The table set that comes along, measured on simulated pods under the virtual clock (about 20 CPU minutes).
table: $(VENV)/installed
	@$(BIN)/python -m loadtest.virtual_profile -o build/simulated
	@$(BIN)/ppd-gateway lut build build/simulated/*.jsonl -o lut/simulated-h100-llama3.1-8b $(SIMULATED)

# The numbers of arXiv 2603.13358 beside ours: docs/paper/README.md and its plots (about 9 CPU minutes, on all cores).
paper: $(VENV)/installed
	@$(BIN)/python -m loadtest.experiments.paper -o docs/paper --rows build/paper.jsonl $(ARGS)

# Overload, tenants, faults, drift, uneven pods: docs/slo/README.md (virtual time, and some minutes of real time on HTTP pod simulators).
slo: $(VENV)/installed
	@$(BIN)/python -m loadtest.experiments.slo -o docs/slo $(ARGS)
