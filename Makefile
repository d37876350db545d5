# One command each; each sets up what it needs on a machine that has Python, pip and make.
#
# An environment is a directory of stamps: a stamp is newer than the files that say what to install,
# or make installs again. `.venv` grows with the task (run < dev, run < bench), so torch is installed
# once; `.venv-core` has neither torch nor ml_dtypes.

PYTHON ?= python3
ARGS ?=
MINUTES = 10
SEED =

VENV := .venv
CORE := .venv-core
OLDEST := .venv-oldest
FLOORS := .venv-floors
NEWEST := .venv-newest
FREETHREADED := .venv-freethreaded
PLUGIN := .venv-plugin
DIST := .venv-dist
WHEEL := .venv-wheel
PINS := requirements/constraints.txt

unexport PYTHONDONTWRITEBYTECODE  # tests start interpreters, each of which would compile the modules again
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1
export PYTEST_ADDOPTS := -p no:zarr  # whose plugin imports all of zarr, in every process that runs a test
PIP_INSTALL := -m pip install -qq --no-compile # most of what is installed is never imported

MEASURED := test test-core test-emulated
SWEEP = # --exhaustive: all dtypes, not four of them
QUICK = -m "not slow"
COVERAGE = # yes: record which branches run
PYTEST = $(if $(COVERAGE),-m coverage run --data-file=.coverage.$@) -m pytest $(SWEEP)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-slow test-exhaustive test-suite test-conformance test-core test-oldest test-floors test-newest test-emulated test-downstream test-plugin test-programs adopters coverage test-freethreaded hunt mutation lint format bench docs site serve site-check dist sbom install-wheel test-wheel test-applications release-check clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/run.stamp ## Run the example on real data, and a filter of SciPy in torch's optimizer
	@$(VENV)/bin/python -W error examples/digits.py
	@$(VENV)/bin/python -W error examples/functions/deblur.py

# Each of the two processes has one processor, so threads of torch would wait for each other. Most of what
# JAX computes in the tests runs once: to compile it well takes twice as long as to compile it quickly. The
# slow tests, and the nightly run over all dtypes, compile it as it is for users.
FAST_COMPILE := --xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true --xla_cpu_use_fusion_emitters=false

test test-core test-emulated: SWEEP = $(QUICK)
test: export XLA_FLAGS = $(FAST_COMPILE)
test: export OMP_NUM_THREADS = 1
test: $(VENV)/dev.stamp ## Run the suite without its slow tests, in two processes (ARGS="-n 8" takes more)
	COVERAGE_FILE=.coverage.$@ $(VENV)/bin/python -m pytest -q -n 2 --dist worksteal $(SWEEP) \
	    $(if $(COVERAGE),--cov --cov-report= --cov-fail-under=0 --durations=20 --durations-min=5) $(PROGRAMS:%=--ignore=%) $(ARGS)

test-slow: $(VENV)/dev.stamp ## Run the slow tests
	$(VENV)/bin/python -m pytest -q -n 2 --dist worksteal -m slow $(PROGRAMS:%=--ignore=%) $(ARGS)

test-exhaustive: ## Run all of it, with all dtypes
	$(MAKE) test SWEEP=--exhaustive XLA_FLAGS=

test-suite: $(VENV)/dev.stamp ## Run the tests and the examples (ARGS="-k copy" reaches pytest)
	$(VENV)/bin/python $(PYTEST) --ignore src/xbridge/testing/conformance $(ARGS)

PROGRAMS := $(patsubst %,tests/project/test_%.py,adopters downstream examples site)

test-conformance: $(VENV)/dev.stamp ## Hold every backend to what backends promise
	$(VENV)/bin/python -m pytest $(SWEEP) src/xbridge/testing/conformance $(ARGS)

test-core: $(CORE)/core.stamp ## Run what needs NumPy alone, with no torch installed
	$(CORE)/bin/python $(PYTEST) $(ARGS)

test-oldest: $(OLDEST)/oldest.stamp ## Run the whole suite with every oldest version allowed (PYTHON=python3.11)
	$(OLDEST)/bin/python -m pytest $(ARGS)

test-floors: $(FLOORS)/floors.stamp ## Run the conformance suite with the oldest versions allowed, without torch
	$(FLOORS)/bin/python -m pytest --hypothesis-profile=floors tests/project/test_floors.py src/xbridge/testing/conformance $(ARGS)

test-newest: $(NEWEST)/newest.stamp ## Run the whole suite with the newest versions there are (PYTHON=python3.13)
	$(NEWEST)/bin/python -m pytest $(ARGS)

# Not every module declares that it runs without the lock: torch's compiler imports one that does not.
test-freethreaded: $(FREETHREADED)/freethreaded.stamp ## Run the suite without the GIL (PYTHON=python3.13t)
	PYTHON_GIL=0 $(FREETHREADED)/bin/python -m pytest $(ARGS)

test-emulated: $(VENV)/dev.stamp ## Run the transfers, and what torch promises, on the emulated accelerator
	$(VENV)/bin/python $(PYTEST) tests/emulated tests/project/test_migrate.py src/xbridge/testing/emulated $(ARGS)
	$(VENV)/bin/python -m pytest $(SWEEP) --pyargs xbridge.testing.conformance --xbridge=torch:emu $(ARGS)

test-downstream: $(VENV)/dev.stamp ## Run the tests of the example package that uses the kit
	cd examples/downstream && PYTHONPATH=src ../../$(VENV)/bin/python -m pytest $(ARGS)

test-plugin: $(PLUGIN)/plugin.stamp ## Install the example plugin, a backend for sparse, and run its tests
	cd tests/plugin_package && ../../$(PLUGIN)/bin/python -m pytest $(ARGS)

test-programs: $(VENV)/adopters.stamp ## Run the examples, the replaced converters of other projects, and the tools of this one
	$(VENV)/bin/python -m pytest $(PROGRAMS) $(ARGS)

adopters: $(VENV)/adopters.stamp ## Run those projects' own tests before and after, and measure (ARGS=autoray runs one)
	$(VENV)/bin/python examples/adopters/run_tests.py $(ARGS)
	$(VENV)/bin/python examples/adopters/measure.py

coverage: COVERAGE = yes
coverage: $(MEASURED) ## Run the suites that count; list the branches that ran in none of them
	@$(VENV)/bin/python -m coverage combine --quiet --keep --data-file=.coverage $(MEASURED:%=.coverage.%)
	$(VENV)/bin/python -m coverage report

hunt: $(VENV)/dev.stamp ## Search for failures with random examples (MINUTES=10; SEED=... repeats a round)
	@end=$$(( $$(date +%s) + 60 * $(MINUTES) )); while :; do \
	    seed=$(or $(SEED),$$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')); \
	    echo "to repeat this round: make hunt SEED=$$seed"; \
	    $(VENV)/bin/python -m pytest -q -m hypothesis --exhaustive --hypothesis-profile=hunt \
	        --hypothesis-seed=$$seed $(ARGS) || exit 1; \
	    [ -n "$(SEED)" ] || [ $$(date +%s) -ge $$end ] && exit 0; \
	done

mutation: $(VENV)/mutation.stamp ## Change the code in one place at a time, and count what no test notices (ARGS="xbridge._plan.*" does a part)
	OMP_NUM_THREADS=1 $(VENV)/bin/python -m mutmut run --max-children 2 $(ARGS)

lint: $(VENV)/dev.stamp ## Check style, format and types
	$(VENV)/bin/python -m ruff check
	$(VENV)/bin/python -m ruff format --check
	$(VENV)/bin/python -m mypy
	$(VENV)/bin/python -m pyright --pythonpath $(VENV)/bin/python
	PYTHONPATH=src $(VENV)/bin/python docs/typed.py

format: $(VENV)/dev.stamp ## Put the code into the house format
	$(VENV)/bin/python -m ruff check --fix-only
	$(VENV)/bin/python -m ruff format

bench: $(VENV)/bench.stamp ## Measure, and write the pages of benchmarks (ARGS="--only skorch" prints some rows)
	$(VENV)/bin/python benchmarks/run.py $(ARGS)

docs: $(VENV)/dev.stamp ## Check the documents: examples, links, and what is generated
	$(VENV)/bin/python -W error docs/generate.py --check
	$(VENV)/bin/python -W error docs/check.py

# The folders are those of a published site: one for each version, beside the list of the versions.
site: $(VENV)/dev.stamp ## Build the documents as a site, into build/site; a warning is an error
	@rm -rf build/site
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/python -m mkdocs --quiet build
	@echo '[{"version": "dev", "title": "dev", "aliases": []}]' > build/site/versions.json
	@echo '<meta http-equiv="refresh" content="0; url=dev/index.html">' > build/site/index.html
	@echo "The site is in build/site. To read it: make serve"

serve: site ## Build the site, and serve it on this machine (ARGS=8001 takes another port)
	@echo "http://127.0.0.1:$(or $(ARGS),8000)/dev/"
	@$(VENV)/bin/python -m http.server --bind 127.0.0.1 --directory build/site $(or $(ARGS),8000)

site-check: site ## Open every page of the site in Chromium; pictures go to build/site-pictures
	$(VENV)/bin/python docs/site_check.py $(ARGS)

dist: $(DIST)/dist.stamp ## Build the sdist and the wheel from it, and review both and the workflows
	@rm -rf dist
	$(DIST)/bin/python -m build --no-isolation --outdir dist > /dev/null
	$(DIST)/bin/twine check --strict dist/*
	$(DIST)/bin/check-wheel-contents dist
	$(DIST)/bin/validate-pyproject pyproject.toml
	$(DIST)/bin/python docs/release.py
	$(DIST)/bin/pyroma --min 8 dist/*.tar.gz # of 10: the team has no mail address
	$(DIST)/bin/repo-review --show err .
	$(DIST)/bin/zizmor --offline --quiet .github

sbom: dist ## Write what an installation of the wheel contains to build/sbom.cdx.json
	@$(PYTHON) -m venv --clear build/sbom
	@build/sbom/bin/python $(PIP_INSTALL) dist/*-py3-none-any.whl
	$(DIST)/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible -o build/sbom.cdx.json build/sbom

# What is in dist/ is tested as it is, so that a release tests what it publishes. `dist` comes first if it
# is made by the same call.
install-wheel: $(WHEEL)/wheel.stamp | $(filter dist,$(MAKECMDGOALS))
	@$(WHEEL)/bin/python $(PIP_INSTALL) --force-reinstall --no-deps --no-index dist/*-py3-none-any.whl

test-applications: install-wheel ## Try the built wheel frozen, zipped, optimized and read-only
	cd tests/applications && ../../$(WHEEL)/bin/python -m pytest $(ARGS)

test-wheel: install-wheel ## Run the tests that need NumPy alone on the built wheel (after make dist)
	@rm -rf build/wheel && mkdir -p build/wheel && cp -r tests docs conftest.py pyproject.toml build/wheel
	cd build/wheel && ../../$(WHEEL)/bin/python -m pytest tests --ignore tests/project $(ARGS)

release-check: ## Do all of a release that needs no network: build, review, test the wheel
	$(MAKE) dist
	$(MAKE) test-wheel
	$(MAKE) test-applications

clean: ## Remove everything these commands have made
	rm -rf $(VENV) $(CORE) $(OLDEST) $(FLOORS) $(NEWEST) $(FREETHREADED) $(PLUGIN) $(DIST) $(WHEEL) dist build htmlcov .coverage .coverage.*
	rm -rf .mypy_cache .ruff_cache .benchmarks mutants
	find . \( -name __pycache__ -o -name .hypothesis -o -name .pytest_cache \) -prune -exec rm -rf {} +

# --- the environments -----------------------------------------------------------------------------

%/new.stamp:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "xbridge needs Python 3.11 or newer. Try: make PYTHON=python3.11 ...")'
	@echo "Setting up $* (once)"
	@$(PYTHON) -m venv --clear $*
	@touch $@

$(VENV)/run.stamp: requirements/demo.txt $(PINS) pyproject.toml | $(VENV)/new.stamp
	@echo "Installing xbridge, its command line, torch and scikit-learn into $(VENV)"
	@$(VENV)/bin/python $(PIP_INSTALL) -r requirements/demo.txt -c $(PINS)
	@$(VENV)/bin/python $(PIP_INSTALL) --no-build-isolation -e '.[cli,torch]' -c $(PINS)
	@touch $@

$(VENV)/dev.stamp: requirements/dev.txt requirements/examples.txt requirements/site.txt requirements/tests.txt requirements/core.txt $(VENV)/run.stamp
	@echo "Installing the tests' and linters' tools into $(VENV)"
	@$(VENV)/bin/python $(PIP_INSTALL) -r requirements/dev.txt -c $(PINS)
	@touch $@

$(VENV)/mutation.stamp: requirements/mutation.txt $(VENV)/dev.stamp
	@echo "Installing what changes the code into $(VENV)"
	@$(VENV)/bin/python $(PIP_INSTALL) -r requirements/mutation.txt -c $(PINS)
	@touch $@

$(VENV)/adopters.stamp: requirements/adopters.txt $(VENV)/dev.stamp
	@echo "Installing the projects whose converters are replaced into $(VENV)"
	@$(VENV)/bin/python $(PIP_INSTALL) -r requirements/adopters.txt -c $(PINS)
	@touch $@

$(VENV)/bench.stamp: requirements/bench.txt requirements/bench-no-deps.txt $(VENV)/run.stamp
	@echo "Installing what the benchmarks compare with into $(VENV)"
	@$(VENV)/bin/python $(PIP_INSTALL) -r requirements/bench.txt -c $(PINS)
	@$(VENV)/bin/python $(PIP_INSTALL) --no-deps -r requirements/bench-no-deps.txt -c $(PINS)
	@touch $@

$(CORE)/core.stamp: requirements/core.txt $(PINS) pyproject.toml | $(CORE)/new.stamp
	@echo "Installing xbridge and pytest, without torch, into $(CORE)"
	@$(CORE)/bin/python $(PIP_INSTALL) -r requirements/core.txt -c $(PINS)
	@$(CORE)/bin/python $(PIP_INSTALL) --no-build-isolation -e . -c $(PINS)
	@touch $@

# The oldest versions come first, so they win over the pins of the same packages.
$(OLDEST)/pins.txt $(FLOORS)/pins.txt: %/pins.txt: requirements/oldest.txt $(PINS) | %/new.stamp
	@awk -F== '!seen[tolower($$1)]++' $^ > $@

$(OLDEST)/oldest.stamp: requirements/tests.txt requirements/core.txt $(OLDEST)/pins.txt pyproject.toml
	@echo "Installing the oldest versions xbridge allows, torch among them, into $(OLDEST)"
	@$(OLDEST)/bin/python $(PIP_INSTALL) -r requirements/tests.txt -c $(OLDEST)/pins.txt
	@$(OLDEST)/bin/python $(PIP_INSTALL) --no-build-isolation -e '.[cli,dask,jax,testing,torch]' -c $(OLDEST)/pins.txt
	@touch $@

$(FLOORS)/floors.stamp: requirements/floors.txt requirements/core.txt $(FLOORS)/pins.txt pyproject.toml
	@echo "Installing the oldest versions xbridge allows, without torch, into $(FLOORS)"
	@$(FLOORS)/bin/python $(PIP_INSTALL) -r requirements/floors.txt -c $(FLOORS)/pins.txt
	@$(FLOORS)/bin/python $(PIP_INSTALL) --no-build-isolation -e '.[cli,dask,jax,testing]' -c $(FLOORS)/pins.txt
	@touch $@

$(DIST)/dist.stamp: requirements/dist.txt $(PINS) | $(DIST)/new.stamp
	@echo "Installing what builds and reviews the distribution into $(DIST)"
	@$(DIST)/bin/python $(PIP_INSTALL) -r requirements/dist.txt -c $(PINS)
	@touch $@

$(WHEEL)/wheel.stamp: requirements/wheel.txt $(PINS) | $(WHEEL)/new.stamp
	@echo "Installing what tests the wheel into $(WHEEL)"
	@$(WHEEL)/bin/python $(PIP_INSTALL) -r requirements/wheel.txt -c $(PINS)
	@touch $@

$(NEWEST)/newest.stamp: requirements/tests.txt requirements/core.txt pyproject.toml | $(NEWEST)/new.stamp
	@echo "Installing the newest versions there are into $(NEWEST)"
	@$(NEWEST)/bin/python $(PIP_INSTALL) --upgrade -r requirements/tests.txt
	@$(NEWEST)/bin/python $(PIP_INSTALL) --upgrade --no-build-isolation -e '.[cli,dask,jax,testing,torch]'
	@touch $@

# What has no wheel for it is left out: to build NumPy or torch takes longer than the tests.
$(FREETHREADED)/freethreaded.stamp: requirements/freethreaded.txt requirements/core.txt pyproject.toml | $(FREETHREADED)/new.stamp
	@$(FREETHREADED)/bin/python -c 'import sysconfig, sys; sys.exit(not sysconfig.get_config_var("Py_GIL_DISABLED") and "this Python has a GIL. Try: make test-freethreaded PYTHON=python3.13t")'
	@echo "Installing NumPy, torch and JAX for Python without the GIL into $(FREETHREADED)"
	@$(FREETHREADED)/bin/python $(PIP_INSTALL) --upgrade --only-binary :all: -r requirements/freethreaded.txt
	@$(FREETHREADED)/bin/python $(PIP_INSTALL) --no-build-isolation --no-deps -e .
	@touch $@

$(PLUGIN)/plugin.stamp: requirements/plugin.txt $(PINS) pyproject.toml tests/plugin_package/pyproject.toml | $(PLUGIN)/new.stamp
	@echo "Installing xbridge, sparse and the plugin between them into $(PLUGIN)"
	@$(PLUGIN)/bin/python $(PIP_INSTALL) -r requirements/plugin.txt -c $(PINS)
	@$(PLUGIN)/bin/python $(PIP_INSTALL) --no-build-isolation -e . -e tests/plugin_package -c $(PINS)
	@touch $@
