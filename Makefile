# Two targets do all on a fresh machine with Python 3.11 or newer: `make demo` and `make test`.

PYTHON ?= python3
VENV ?= .venv
SEEDS ?= 1-2000
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEMO_READY := $(VENV)/.demo-ready
DOCS_READY := $(VENV)/.docs-ready
# MLflow's server excludes versions that the other tools need (pyarrow), so it has an environment of its own.
MLFLOW_VENV := .venv-mlflow
MLFLOW_READY := $(MLFLOW_VENV)/.ready
NEWER = $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, $(PYTHON) is " + sys.version.split()[0] + ": name another with make PYTHON=…")'
PIP := $(BIN)/pip install --disable-pip-version-check --constraint tests/constraints.txt
# One more than the two cores of CI: daemons and groups wait now and then.
JOBS ?= 3
PYTEST := $(BIN)/pytest --numprocesses $(JOBS) --durations 10
# Many images set this one. Each of the hundreds of processes of the tests would then compile the package again.
unexport PYTHONDONTWRITEBYTECODE
SECONDS := tests/commands/demo tests/deploy tests/integration tests/simulation tests/daemon/workers

.PHONY: help demo test test-fast test-all test-rest test-gpu faults lint docs bench simulate dashboards reference screenshots try-compose soak try-systemd try-readme clean

help:  ## Show this.
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST)

demo: $(or $(wildcard $(READY)),$(DEMO_READY))  ## Train on real digits and watch each checkpoint being evaluated (2 minutes; ARGS=--keep).
	@echo 'Training a small model and evaluating its 8 checkpoints, which takes 1 to 2 minutes. Ctrl-C ends it.'
	@$(BIN)/sidecar demo $(ARGS)

test: lint $(MLFLOW_READY)  ## Run every check and the tests of every part, with real processes and faults (10 to 14 minutes on two cores; ARGS="tests/daemon -x").
	$(PYTEST) -m 'not nightly' $(ARGS)

test-fast: $(READY)  ## Run the tests that import no framework and start no process for seconds (1 minute).
	PYTHONPATH=tests $(PYTEST) -p no_framework -m 'not tensorflow and not torch and not seconds and not nightly' $(SECONDS:%=--ignore=%) $(ARGS)

test-all: lint $(MLFLOW_READY)  ## Run the whole suite: all metric classes, 2,000 schedules, mutations, recordings made again (35 minutes).
	$(PYTEST) $(ARGS)

test-rest: $(READY) $(MLFLOW_READY)  ## Run what `make test` leaves to `make test-all`.
	$(PYTEST) -m nightly $(ARGS)

test-gpu: $(READY)  ## Run what needs a GPU; where there is none, say so and try nothing.
	@if nvidia-smi -L >/dev/null 2>&1; then \
	  $(PIP) --quiet --editable '.[gpu,dev]' && \
	  $(BIN)/pytest tests/integration/gpu $(ARGS); \
	else echo '!!! NO GPU HERE, nothing was tried: nvidia-smi finds none'; fi

faults: $(READY)  ## Try what can go wrong with processes, links and disks, and takes longer (10 minutes; root).
	$(BIN)/pytest tests/integration/faults $(ARGS)

lint: $(READY)  ## Run the checks that run nothing.
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(or $(wildcard $(READY)),$(DOCS_READY))  ## Build the documentation site into site/; a broken link or a page outside the navigation fails it.
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --clean

bench: $(READY)  ## Measure, and write tests/benchmarks/RESULTS.md (35 minutes; root; ARGS="latency --quick" tries one).
	$(BIN)/python tests/benchmarks $(ARGS)

simulate: $(READY)  ## Simulate daemons under faults (SEEDS=1-50000; one seed with FAULTS=, NODES=, CHECKPOINTS= is replayed).
	PYTHONPATH=tests $(BIN)/python -m simulation $(SEEDS) $(if $(FAULTS),--faults=$(FAULTS)) $(if $(NODES),--nodes=$(NODES)) \
	  $(if $(CHECKPOINTS),--checkpoints=$(CHECKPOINTS)) $(ARGS)

dashboards: $(READY)  ## Write the Grafana dashboards anew from the code that makes them.
	$(BIN)/python deploy/grafana/dashboards.py

reference: $(READY)  ## Write the pages of docs/reference/ that follow from the code.
	$(BIN)/python docs/generate.py

screenshots: $(READY) $(MLFLOW_READY)  ## Take the pictures of docs/img/ anew from a run of the demo (3 minutes; chromium, tmux).
	$(BIN)/python docs/screenshots.py

try-compose:  ## Build the images, start docker-compose.yml, let its end-to-end test judge it (Docker).
	deploy/compose/try

soak:  ## Run docker-compose.yml for ten minutes, restart a trainer meanwhile, count (Docker).
	deploy/compose/try soak

try-systemd: $(READY)  ## Try the unit under a real systemd in a container (10 minutes; Docker, root, debootstrap).
	$(BIN)/python tests/deploy/systemd/try

try-readme:  ## Type the commands of the README in a clean container and time them (Docker).
	tests/deploy/readme/try

clean:  ## Remove the virtual environment and what tools left.
	rm -rf $(VENV) $(MLFLOW_VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .coverage sidecar-demo site

$(READY): pyproject.toml tests/constraints.txt
	@$(NEWER)
	$(PYTHON) -m venv $(VENV)
	$(PIP) --quiet --editable '.[tensorflow,torch,mlflow,dev,docs]'
	@touch $(READY)

$(MLFLOW_READY): tests/mlflow-server.txt
	@$(NEWER)
	$(PYTHON) -m venv $(MLFLOW_VENV)
	$(MLFLOW_VENV)/bin/pip install --quiet --disable-pip-version-check --no-deps --requirement tests/mlflow-server.txt
	@touch $@

$(DEMO_READY): pyproject.toml tests/constraints.txt
	@$(NEWER)
	@echo 'Installing TensorFlow and scikit-learn into $(VENV): 700 MB to download, 2.5 GB on disk, 1 to 2 minutes.'
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) --editable '.[demo]'
	@touch $(DEMO_READY)

$(DOCS_READY): pyproject.toml tests/constraints.txt
	@$(NEWER)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --quiet --editable '.[docs]'
	@touch $@
