# Two commands do everything on a machine with Python >= 3.10 and a C++20 compiler:
#   make demo    environment, build, and the main job on real data
#   make test    environment, build, and every check
# Everything they install goes to .venv, everything they build to build/; `make clean` removes both.
#
#   PYTHON=python3.12         the interpreter to make .venv from
#   PIP_FLAGS=...             for every pip install, say an index of CPU-only PyTorch wheels
#   PYTEST_FLAGS="-k resnet"  for pytest

PYTHON ?= python3
PIP_FLAGS ?=
PYTEST_FLAGS ?=
JOBS ?= $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)

VENV := .venv
BIN := $(CURDIR)/$(VENV)/bin
# In its own PATH, so that CMake finds ninja and scikit-build-core finds cmake.
export PATH := $(BIN):$(PATH)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
PIP_INSTALL := $(BIN)/python -m pip install --quiet $(PIP_FLAGS)

# ccache, where there is one, makes the second build a matter of seconds.
ifneq ($(shell command -v ccache 2>/dev/null),)
export CMAKE_CXX_COMPILER_LAUNCHER := ccache
endif
export CMAKE_BUILD_PARALLEL_LEVEL ?= $(JOBS)

PINS := requirements-dev.txt
BUILD_TOOLS := scikit-build-core pybind11 cmake ninja
SOURCES := $(shell find python cpp kernels -name '*.py' -o -name '*.cpp' -o -name '*.h' -o -name '*.json') \
  CMakeLists.txt pyproject.toml
# abi.h is generated.
CXX_SOURCES = $(shell git ls-files '*.cpp' '*.h' ':!kernels/shared/abi.h')

.DEFAULT_GOAL := help
.PHONY: help demo test lint types ctest sanitize arm64 fuzz pytest docs wheel format bench clean

help:
	@sed -n '/^$$/q;s/^# \{0,1\}//p' Makefile

# --- environment and build -------------------------------------------------------------------

$(VENV)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "npusim needs Python >= 3.10")'
	$(PYTHON) -m venv $(VENV)
	touch $@

# PyTorch by itself and pinned: an open range may resolve to gigabytes of accelerator builds.
$(VENV)/torch: $(VENV)/python $(PINS)
	@echo "Installing PyTorch and the build tools ..."
	$(PIP_INSTALL) $$(grep '^torch==' $(PINS))
	$(PIP_INSTALL) -c $(PINS) $(BUILD_TOOLS)
	touch $@

$(VENV)/dev: $(VENV)/torch
	@echo "Installing the development tools ..."
	$(PIP_INSTALL) -r $(PINS)
	touch $@

# The package's build tree serves the C++ tests as well: kernels are compiled once.
RELEASE := build/release
$(VENV)/npusim: $(VENV)/torch $(SOURCES)
	@echo "Building npusim ..."
	$(PIP_INSTALL) --no-build-isolation -c $(PINS) --config-settings=build-dir=$(RELEASE) \
	  $(addprefix --config-settings=cmake.define.,$(STRICT)) '.[torch,cli,demo]'
	touch $@

# --- the main job ----------------------------------------------------------------------------

demo: $(VENV)/npusim
	$(BIN)/npusim demo --out demo-out

bench: $(VENV)/npusim $(VENV)/dev
	$(BIN)/python benchmarks/cpu_models.py

# --- checks ----------------------------------------------------------------------------------

test: lint types ctest sanitize fuzz pytest docs
	@echo "All checks passed."

lint: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run -Werror $(CXX_SOURCES)

types: $(VENV)/dev
	$(BIN)/mypy

CMAKE_TESTS := -G Ninja -DNPUSIM_PYTHON=OFF -DNPUSIM_TESTS=ON

# Warnings are errors in every check. GCC 12 takes "text" + std::string for an overlapping copy
# (GCC bug 105651).
IS_GCC := $(findstring Free Software,$(shell $${CXX:-c++} --version 2>/dev/null))
test ctest pytest docs: STRICT = NPUSIM_WERROR=ON \
  $(if $(IS_GCC),CMAKE_CXX_FLAGS=-Wno-error=restrict)

ctest: $(VENV)/npusim $(VENV)/dev
	cmake -S . -B $(RELEASE) -DNPUSIM_TESTS=ON $(addprefix -D,$(STRICT))
	cmake --build $(RELEASE) -- -k 0
	ctest --test-dir $(RELEASE) --output-on-failure

# Without -Werror: instrumented code misleads GCC's flow warnings; ctest has them all.
sanitize: $(VENV)/dev
	cmake -S . -B build/sanitize $(CMAKE_TESTS) -DNPUSIM_SANITIZE=address,undefined
	cmake --build build/sanitize -- -k 0
	ctest --test-dir build/sanitize --output-on-failure

FUZZ_RUNS ?= 50000
fuzz: $(VENV)/dev
	@cxx=$$(.ci/fuzzing-compiler); if [ -z "$$cxx" ]; then \
	  echo "No Clang with libFuzzer here: ctest replays the loaders' corpus, nothing extends it."; \
	else set -ex; \
	  cmake -S . -B build/fuzz -G Ninja -DNPUSIM_PYTHON=OFF -DNPUSIM_FUZZ=ON \
	    -DNPUSIM_FUZZ_RUNS=$(FUZZ_RUNS) -DCMAKE_CXX_COMPILER=$$cxx; \
	  cmake --build build/fuzz --target program_fuzzer safetensors_fuzzer; \
	  ctest --test-dir build/fuzz --output-on-failure -R '^fuzz_'; \
	fi

# The C++ tests on emulated arm64: needs a cross compiler and qemu (on Debian g++-aarch64-linux-gnu
# and qemu-user-static), which is why `make test` leaves it out.
arm64: $(VENV)/dev
	cmake -S . -B build/arm64 $(CMAKE_TESTS) -DCMAKE_SYSTEM_NAME=Linux \
	  -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ \
	  -DCMAKE_CROSSCOMPILING_EMULATOR="qemu-aarch64-static;-L;/usr/aarch64-linux-gnu"
	cmake --build build/arm64
	ctest --test-dir build/arm64 --output-on-failure

# Two releases of tinygrad are read: the pinned one, and this in a folder in front of it.
OLDER_TINYGRAD := $(CURDIR)/build/tinygrad-0.13

# Threads of the libraries times the workers of pytest must not exceed the machine.
pytest: $(VENV)/npusim $(VENV)/dev
	OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 \
	  $(BIN)/python -m pytest tests -n $(JOBS) --hypothesis-profile=ci $(PYTEST_FLAGS)
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' || exit 0; set -ex; \
	  $(PIP_INSTALL) --no-deps --upgrade --target $(OLDER_TINYGRAD) tinygrad==0.13.0; \
	  PYTHONPATH=$(OLDER_TINYGRAD) $(BIN)/python -m pytest tests/frontends/tinygrad -n $(JOBS)

# --- the rest --------------------------------------------------------------------------------

format: $(VENV)/dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CXX_SOURCES)

docs: $(VENV)/npusim $(VENV)/dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --site-dir site

wheel: $(VENV)/dev
	$(BIN)/python -m pip wheel $(PIP_FLAGS) --no-deps --no-build-isolation -w dist .

clean:
	rm -rf build $(VENV) dist site
