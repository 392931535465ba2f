# Everything a checkout needs, from a machine that has only make and
# python3 (3.11 or newer, with its venv module).
#
#   make demo       compare two exact solvers and Alpa on a built-in problem
#   make report     a page about Llama 3 70B on 64 H100, build/report.html
#   make test       lint, type check, and the tests that are quick
#   make test-all   lint, type check, and the whole test suite
#   make lint       only the static checks
#   make test-full  the agreement tests on thousands of random problems
#   make test-torch the tests that need PyTorch, with its CPU build
#   make test-exports  the tests that need the parsers of frameworks
#   make test-models  the tests that count the models of transformers
#   make test-browser  the pages in a headless browser, with screenshots
#   make docs       the site of build/docs: cells and the gallery are run
#   make pictures   the pictures of the report in the repository anew
#   make test-scip  the tests that need SCIP, another engine of milp
#   make fuzz       run commands on 100,000 broken files; none may do harm
#   make mutation   break the solvers on purpose; some test must notice
#   make bench-quick  a small benchmark with its report in build/bench-quick
#   make coverage   the whole test suite, with what it reaches
#   make lock       resolve the dependencies anew
#   make clean      remove what the other targets made

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed-from-lock
PYTEST_ARGS ?= -n 2 --dist worksteal
SEED ?= $(shell date +%s)
# Without bytecode every process that a test starts compiles nest anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo report test test-all test-rest lint test-full test-torch test-exports \
  test-models test-browser test-scip docs pictures coverage fuzz mutation \
  bench-quick lock clean
.DELETE_ON_ERROR:

help:
	@sed -n 's/^#   //p' Makefile

# Set-up: once, and again when the lock or the project file changes.
$(STAMP): requirements.lock pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "set-up: expected\
	 $(PYTHON) on the PATH, got none; install Python 3.11 or newer, or name\
	 one: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	{ echo "set-up: expected Python 3.11 or newer, got $$($(PYTHON)\
	 --version 2>&1); name another one: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	{ echo "set-up: expected Python's venv module, got none; install it\
	 (on Debian: apt install python3-venv)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -qq --disable-pip-version-check \
	  --require-hashes -r requirements.lock
	$(BIN)/python -m pip install -qq --disable-pip-version-check \
	  --no-deps --no-build-isolation --editable .
	@touch $@

demo: $(STAMP)
	$(BIN)/nest compare --solvers dp,milp,alpa

report: $(STAMP)
	@mkdir -p build
	$(BIN)/nest compare --model llama3-70b --cluster h100x64 \
	  --solvers dp,alpa,galvatron,megatron --html build/report.html
	@echo "report: build/report.html"

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/codespell
	$(BIN)/validate-pyproject pyproject.toml

# pytest comes last, so that its summary is the last line.
test: lint
	HYPOTHESIS_PROFILE=quick $(BIN)/python -m pytest $(PYTEST_ARGS) \
	  -m 'not slow'

test-all: lint
	$(BIN)/python -m pytest $(PYTEST_ARGS)

# What make test leaves out: CI runs both.
test-rest: $(STAMP)
	$(BIN)/python -m pytest $(PYTEST_ARGS) -m 'slow or random'

# make test-full SEED=n repeats a run.
test-full: $(STAMP)
	HYPOTHESIS_PROFILE=full $(BIN)/python -m pytest $(PYTEST_ARGS) \
	  --hypothesis-seed=$(SEED) tests/properties tests/independent

coverage: $(STAMP)
	$(BIN)/python -m coverage erase
	$(BIN)/python -m coverage run -m pytest $(PYTEST_ARGS)
	$(BIN)/python -m coverage combine -q
	$(BIN)/python -m coverage report

# PyTorch's CPU build, beside the environment and not in it, so that all other
# targets run without it. On Linux "+cpu" keeps out the build with gigabytes
# of CUDA libraries; TORCH_PIP_ARGS may say where else to look for it. Its
# hash is not checked, as every source of CPU builds has its own.
TORCH ?= torch==2.13.0$(if $(filter Linux,$(shell uname -s)),+cpu)
TORCH_PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check \
  --no-compile --target .torch
.torch/.installed-from-lock: requirements-torch.lock $(STAMP)
	rm -rf .torch
	$(TORCH_PIP) --require-hashes -r requirements-torch.lock
	$(TORCH_PIP) --no-deps --only-binary :all: $(TORCH_PIP_ARGS) $(TORCH)
	@touch $@

# Without PyTorch these tests would be skipped: the import fails instead.
test-torch: .torch/.installed-from-lock
	PYTHONPATH=.torch $(BIN)/python -c 'import torch'
	PYTHONPATH=.torch $(BIN)/python -m pytest $(PYTEST_ARGS) -m torch \
	  tests/unit tests/cli

# The parsers of the frameworks that plans are exported to, beside PyTorch's
# CPU build. Their own dependencies (GPUs, data) are left out; megatron-core
# states a newer Python than its arguments need.
FRAMEWORKS := megatron-core==0.19.2 torchtitan==0.2.2 deepspeed==0.19.8
EXPORTS_PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check \
  --no-compile --target .exports
.exports/.installed-from-lock: requirements-exports.lock \
  .torch/.installed-from-lock
	rm -rf .exports
	$(EXPORTS_PIP) --require-hashes -r requirements-exports.lock
	$(EXPORTS_PIP) --no-deps --ignore-requires-python $(FRAMEWORKS)
	@touch $@

# Without the packages these tests would be skipped: the import fails instead.
test-exports: .exports/.installed-from-lock
	PYTHONPATH=.exports:.torch $(BIN)/python -c 'import deepspeed'
	PYTHONPATH=.exports:.torch $(BIN)/python -m pytest $(PYTEST_ARGS) \
	  -m packages tests/packages

# The package whose models are counted, on the meta device of PyTorch's CPU
# build.
TRANSFORMERS := transformers==5.24.0
MODELS_PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check \
  --no-compile --target .models
.models/.installed-from-lock: requirements-models.lock \
  .torch/.installed-from-lock
	rm -rf .models
	$(MODELS_PIP) --require-hashes -r requirements-models.lock
	$(MODELS_PIP) --no-deps $(TRANSFORMERS)
	@touch $@

# Without the package these tests would be skipped: the import fails instead.
test-models: .models/.installed-from-lock
	PYTHONPATH=.models:.torch $(BIN)/python -c 'import transformers'
	PYTHONPATH=.models:.torch $(BIN)/python -m pytest -m models tests/models

# What drives a browser, and axe-core, which finds what keeps people out; it
# comes with a package whose own dependency, another driver, is left out. The
# browser is the system's: on Debian, apt install chromium chromium-driver.
AXE := axe-playwright-python==0.1.8
BROWSER_PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check \
  --no-compile --target .browser
.browser/.installed-from-lock: requirements-browser.lock $(STAMP)
	rm -rf .browser
	$(BROWSER_PIP) --require-hashes -r requirements-browser.lock
	$(BROWSER_PIP) --no-deps $(AXE)
	@touch $@

# Without the package these tests would be skipped: the import fails instead.
test-browser: .browser/.installed-from-lock
	PYTHONPATH=.browser $(BIN)/python -c 'import selenium'
	PYTHONPATH=.browser $(BIN)/python -m pytest -m browser tests/browser

# What makes the site from docs/, beside the environment that it runs nest in.
.docs/.installed-from-lock: requirements-docs.lock $(STAMP)
	rm -rf .docs
	$(BIN)/python -m pip install -qq --disable-pip-version-check \
	  --no-compile --target .docs --require-hashes -r requirements-docs.lock
	@touch $@

# Warnings are errors; then every link of what was written is followed. The
# examples of docstrings and of docs/python.md are among the tests. Where there
# is a browser, the build takes the pictures of the site, and looks at pages.
BROWSER_HERE := $(and $(shell which chromium chromium-browser \
  google-chrome 2>/dev/null),$(shell which chromedriver 2>/dev/null))
# The cells about modules run where make test-torch has installed PyTorch.
DOCS_TORCH := $(if $(wildcard .torch/.installed-from-lock),:$(CURDIR)/.torch)
DOCS_PYTHON := \
  PYTHONPATH=$(CURDIR)/.docs:$(CURDIR)/.browser$(DOCS_TORCH) $(BIN)/python
docs: .docs/.installed-from-lock \
  $(if $(BROWSER_HERE),.browser/.installed-from-lock)
	rm -rf build/docs
	$(DOCS_PYTHON) -m sphinx -W --keep-going -E -q -d build/doctrees \
	  -b html docs build/docs
	$(DOCS_PYTHON) docs/check_links.py build/docs
	$(DOCS_PYTHON) docs/check_access.py build/docs

pictures: .browser/.installed-from-lock
	PYTHONPATH=.browser $(BIN)/python docs/pictures.py

# SCIP through its Python interface; its hash is not checked, as every platform
# has its own build.
SCIP := pyscipopt==6.3.0
.scip/.installed: $(STAMP)
	rm -rf .scip
	$(BIN)/python -m pip install -qq --disable-pip-version-check \
	  --no-compile --target .scip --no-deps --only-binary :all: $(SCIP)
	@touch $@

# Without the package these tests would be skipped: the import fails instead.
test-scip: .scip/.installed
	PYTHONPATH=.scip $(BIN)/python -c 'import pyscipopt'
	PYTHONPATH=.scip $(BIN)/python -m pytest -m scip tests/unit

# make fuzz SEED=n repeats a run.
FUZZ ?= 100000
fuzz: $(STAMP)
	$(BIN)/python -m tests.fuzz $(FUZZ) $(SEED)

mutation: $(STAMP)
	$(BIN)/python bench/mutation.py

# Goes on where it was stopped; make clean begins anew.
BENCH_SOLVERS := dp,cpsat,milp,alpa,galvatron,phaze,piper,megatron,mcmc,uniap,ft,aceso,zb,random
bench-quick: $(STAMP)
	$(BIN)/nest bench quick --solvers $(BENCH_SOLVERS) --time-limit 20 \
	  --jobs $$($(BIN)/python -c 'from nest.util.versions import num_cpus; \
	  print(min(2, num_cpus()))') --resume -o build/bench-quick

# uv is needed for this target only; it is not part of the lock.
COMPILE := $(BIN)/uv pip compile --universal --upgrade --generate-hashes \
  --no-emit-index-url --no-annotate --quiet --custom-compile-command 'make lock'
lock: $(STAMP)
	$(BIN)/python -m pip install -qq --disable-pip-version-check uv
	$(COMPILE) pyproject.toml --extra chakra --extra dask --extra plot \
	  --extra report --group dev --output-file requirements.lock
	$(COMPILE) --group torch --output-file requirements-torch.lock
	$(COMPILE) --group exports --output-file requirements-exports.lock
	$(COMPILE) --group models --output-file requirements-models.lock
	$(COMPILE) --group browser --output-file requirements-browser.lock
	$(COMPILE) --group docs --output-file requirements-docs.lock

clean:
	rm -rf $(VENV) .torch .exports .models .browser .docs .scip .mypy_cache .ruff_cache .pytest_cache .hypothesis \
	  .coverage .coverage.* build dist
	find nest formulations baselines tests bench -name __pycache__ \
	  -type d -prune -exec rm -rf {} +
