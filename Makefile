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
# Of what is installed a third is ever imported, which Python compiles when it is: once, so it has to
# keep it, and pytest what it makes of asserts, whatever the environment says.
unexport PYTHONDONTWRITEBYTECODE
PIP_INSTALL := $(BIN)/python -m pip install --quiet --no-compile $(PIP_FLAGS)

# One name of the compiler for every build: a cache takes another for another compiler.
ifeq ($(origin CXX),default)
CXX := c++
endif
export CXX

# ccache, where there is one, makes the second build a matter of seconds.
ifneq ($(shell command -v ccache 2>/dev/null),)
export CMAKE_CXX_COMPILER_LAUNCHER := ccache
endif
export CMAKE_BUILD_PARALLEL_LEVEL ?= $(JOBS)

PINS := requirements-dev.txt
BUILD_TOOLS := scikit-build-core pybind11 cmake ninja
# What the compiled module is made of. Python files, data and CUDA sources are read where they lie.
COMPILED := $(shell find cpp kernels/cpu kernels/shared -name '*.cpp' -o -name '*.h') \
  CMakeLists.txt pyproject.toml python/npusim/version.py python/npusim/_runtime.pyi
# abi.h is generated.
CXX_SOURCES = $(shell git ls-files '*.cpp' '*.h' ':!kernels/shared/abi.h')

.DEFAULT_GOAL := help
.PHONY: properties help demo test smoke lint types ctest sanitize arm64 macos metal metal-cpp \
  metal-smoke fuzz fuzz-runs fuzz-files pytest long docs screenshot sdk sdk-smoke reproducible wheel wheels \
  check-wheel format values bench soak clean served-decoders ray

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

# The package's build tree serves the C++ tests as well: kernels are compiled once. An editable
# install: an edit of a Python file needs no build (`make check-wheel` tests what users install).
RELEASE := build/release
PIP_BUILD := --no-build-isolation -c $(PINS) --config-settings=build-dir=$(RELEASE)
$(VENV)/npusim: $(VENV)/torch $(COMPILED)
	@echo "Building npusim ..."
	$(PIP_INSTALL) $(PIP_BUILD) $(addprefix --config-settings=cmake.define.,$(STRICT)) \
	  -e '.[torch,cli,demo]'
	touch $@

# --- the main job ----------------------------------------------------------------------------

demo: $(VENV)/npusim
	$(BIN)/npusim demo --out demo-out

bench: $(VENV)/npusim $(VENV)/dev
	$(BIN)/python benchmarks/cpu_models.py

# Long use and bad conditions, with the machine left to others: docs/reliability.md has the figures.
soak: $(VENV)/npusim $(VENV)/dev
	nice -n 19 $(BIN)/python -m tests.soak $(SOAK_FLAGS)

# --- checks ----------------------------------------------------------------------------------

# Two at a time while compilers and installers take turns at using the processors, what fails
# soonest first; tests of Python have the machine to themselves.
TOGETHER = $(MAKE) -j2 $(if $(filter output-sync,$(.FEATURES)),--output-sync=target)
test:
	$(TOGETHER) fuzz lint
	$(TOGETHER) types ctest docs sanitize sdk-smoke
	$(MAKE) pytest
	$(MAKE) metal-smoke
	@echo "All checks passed."

# What to run after every edit: under a minute, a test or more of each part of the pipeline.
SMOKE := tests/test_imports.py tests/test_abi_header.py tests/ir tests/program tests/format \
  tests/passes tests/runtime/test_executor.py tests/runtime/test_session.py \
  tests/cli/test_contract.py --ignore=tests/passes/test_symbolic_sizes.py \
  --ignore=tests/format/test_round_trip.py \
  --deselect=tests/format/test_refusals.py::test_readers_agree \
  --deselect=tests/test_imports.py::test_parts_can_be_imported_first
smoke: $(VENV)/npusim $(VENV)/dev
	OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m pytest $(SMOKE) -q -n $(JOBS)

# Random graphs on ordinary and on edge values, many more than `make pytest` draws (an hour).
PROPERTY_GRAPHS ?= 20000
properties: $(VENV)/npusim $(VENV)/dev
	OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m tests.properties.search 0 $(PROPERTY_GRAPHS)
	OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 \
	  $(BIN)/python -m tests.properties.search 0 $(PROPERTY_GRAPHS) edges

lint: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run -Werror $(CXX_SOURCES)

types: $(VENV)/dev
	$(BIN)/mypy

# Warnings are errors in every check. GCC 12 takes "text" + std::string for an overlapping copy
# (GCC bug 105651).
IS_GCC := $(findstring Free Software,$(shell $(CXX) --version 2>/dev/null))
ctest sdk sdk-smoke pytest metal metal-smoke smoke docs check-wheel: STRICT = NPUSIM_WERROR=ON \
  $(if $(IS_GCC),CMAKE_CXX_FLAGS=-Wno-error=restrict)

ctest: $(VENV)/npusim $(VENV)/dev
	cmake -S . -B $(RELEASE) -DNPUSIM_TESTS=ON $(addprefix -D,$(STRICT))
	cmake --build $(RELEASE) -- -k 0
	ctest --test-dir $(RELEASE) --output-on-failure -j $(JOBS)

# Without -Werror: instrumented code misleads GCC's flow warnings; ctest has them all. Only the
# instruction set that this machine would choose, and a tenth of the random traces.
sanitize: $(VENV)/torch
	cmake --preset sanitize
	cmake --build --preset sanitize -- -k 0
	ctest --preset sanitize -j $(JOBS)

FUZZ_RUNS ?= 50000
fuzz: $(VENV)/torch
	@cxx=$$(.ci/fuzzing-compiler); if [ -z "$$cxx" ]; then \
	  echo "No Clang with libFuzzer here: ctest replays the loaders' corpus, nothing extends it."; \
	else set -ex; \
	  cmake --preset fuzz -DNPUSIM_FUZZ_RUNS=$(FUZZ_RUNS) -DCMAKE_CXX_COMPILER=$$cxx; \
	  cmake --build --preset fuzz --target program_fuzzer safetensors_fuzzer; \
	  ctest --preset fuzz -R '^fuzz_(program|safetensors)$$'; \
	fi

# Every decoder of transformers in steps of many requests (an hour), or those named.
SERVED_DECODERS ?=
served-decoders: $(VENV)/npusim $(VENV)/dev
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.zoo --served $(SERVED_DECODERS)

# Replicas and Datasets in a Ray of this machine: minutes, so `make test` leaves them out.
ray: $(VENV)/npusim $(VENV)/dev
	$(PIP_INSTALL) "$$(sed -n 's/^ray = .*"\(ray\[[^;]*\);.*/\1/p' pyproject.toml)"
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/serve/test_ray.py --ray $(PYTEST_FLAGS)

# Mutated files and command lines through the Python side; docs/fuzzing.md has what was found.
FILE_RUNS ?= 10000
fuzz-files: $(VENV)/npusim $(VENV)/dev
	for target in graph module text plan pytorch-ir onnx arguments; do \
	  $(BIN)/python -m tests.fuzz $$target --runs $(FILE_RUNS) || exit 1; done

# Programs and sessions that the loaders accept, run and watched: the kernels take minutes to build.
fuzz-runs: $(VENV)/dev
	cmake --preset fuzz -DNPUSIM_FUZZ_RUNS=$(FUZZ_RUNS) -DNPUSIM_ISAS=baseline \
	  -DCMAKE_CXX_COMPILER=$$(.ci/fuzzing-compiler)
	cmake --build --preset fuzz --target run_fuzzer step_fuzzer session_fuzzer c_api_fuzzer
	ctest --preset fuzz -R '^fuzz_(run|step|session|c_api)$$'

# The C++ tests on emulated arm64: needs a cross compiler and qemu (on Debian g++-aarch64-linux-gnu
# and qemu-user-static), which is why `make test` leaves it out.
arm64: $(VENV)/dev
	cmake --preset arm64
	cmake --build --preset arm64
	ctest --preset arm64

# Metal's API and its kernels on a software device (tests/softmetal/README.md has what it needs), also
# through Apple's metal-cpp: its headers come with a wheel for macOS, of which only they are kept.
# Then npusim's Metal backend on that device, in a runtime that is built for it.
METAL_CPP := $(CURDIR)/build/metal-cpp
METAL_CPP_WHEEL := build/metal-cpp-wheel
$(METAL_CPP)/Metal/Metal.hpp: tests/softmetal/metal-cpp.txt | $(VENV)/python
	rm -rf $(METAL_CPP) $(METAL_CPP_WHEEL)
	$(BIN)/python -m pip download --quiet $(PIP_FLAGS) --no-deps --only-binary=:all: \
	  --platform macosx_14_0_arm64 --require-hashes -r $< --dest $(METAL_CPP_WHEEL)
	$(BIN)/python -m zipfile -e $(METAL_CPP_WHEEL)/*.whl $(METAL_CPP_WHEEL)
	mv $(METAL_CPP_WHEEL)/mlx/include/metal_cpp $(METAL_CPP)
	rm -rf $(METAL_CPP_WHEEL)
	touch $@

METAL_EVERY = 4
metal: METAL_EVERY = 1
METAL_PYTEST = NPUSIM_METAL_EVERY=$(METAL_EVERY) NPUSIM_METAL_CPP=$(METAL_CPP) \
  OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 \
  $(BIN)/python -m pytest -n $(JOBS) -rs $(PYTEST_FLAGS)
metal-cpp: $(VENV)/python
	$(MAKE) $(METAL_CPP)/Metal/Metal.hpp || echo "Apple's metal-cpp cannot be fetched: going on without it."

metal: $(VENV)/npusim $(VENV)/dev metal-cpp
	$(METAL_PYTEST) tests/softmetal
	$(METAL_PYTEST) tests/metal tests/conformance --device metal

# The Metal backend and a conformance case of each operator; `make pytest` has run tests/softmetal.
metal-smoke: $(VENV)/npusim $(VENV)/dev metal-cpp
	$(METAL_PYTEST) tests/metal --device metal
	$(METAL_PYTEST) tests/conformance/test_ops.py --device metal --each-op

# The runtime with its Metal backend, compiled for Macs with Apple's processors by Zig's clang, which
# brings macOS's headers but no frameworks: what Metal's would declare comes from stand-ins, and no
# program is linked.
ZIG := build/zig
macos: $(VENV)/dev $(METAL_CPP)/Metal/Metal.hpp
	$(PIP_INSTALL) --no-deps --upgrade --target $(ZIG) ziglang==0.17.1
	CXX="$(CURDIR)/$(ZIG)/ziglang/zig c++" cmake --preset macos \
	  -DNPUSIM_METAL_CPP=$(METAL_CPP) -DCMAKE_CXX_FLAGS="-isystem $(CURDIR)/tests/softmetal/platform"
	cmake --build --preset macos

# Every value of the small dtypes, the edges of the others, scalars and pairs of dtypes: an hour.
values: $(VENV)/npusim $(VENV)/dev
	OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m tests.conformance.value_sweep

# Threads of the libraries times the workers of pytest must not exceed the machine.
pytest: $(VENV)/npusim $(VENV)/dev
	OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 \
	  $(BIN)/python -m pytest tests -n $(JOBS) --dist worksteal --hypothesis-profile=ci $(PYTEST_FLAGS)

# Two releases of tinygrad are read: the pinned one, and this in a folder before it.
OLDER_TINYGRAD := $(CURDIR)/build/tinygrad-0.13

# What CI has no time for: tests marked as long, the older tinygrad, and under sanitizers all of the
# random traces that CTest draws without them.
long: $(VENV)/npusim $(VENV)/dev
	OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 \
	  $(BIN)/python -m pytest tests -n $(JOBS) --dist worksteal --long -m long $(PYTEST_FLAGS)
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' || exit 0; set -ex; \
	  $(PIP_INSTALL) --no-deps --upgrade --target $(OLDER_TINYGRAD) tinygrad==0.13.0; \
	  PYTHONPATH=$(OLDER_TINYGRAD) $(BIN)/python -m pytest tests/frontends/tinygrad -n $(JOBS)
	cmake --preset sanitize -DNPUSIM_BATCH_TRACES=20000
	cmake --build --preset sanitize --target test_batch_traces
	ctest --preset sanitize -R '^test_batch_traces$$'

# libnpusim as native programs get it: installed into an empty prefix, its symbols, size and interface
# checked, and the examples built and run from there (docs/embedding.md). The quick one builds the
# library once.
sdk sdk-smoke: $(VENV)/npusim $(VENV)/dev
	$(BIN)/python -m tests.sdk $(if $(filter %smoke,$@),--quick) build/sdk-check build/sdk \
	  $(addprefix -D,$(STRICT))

# Two builds of the last commit, in different folders, are the same bytes: libnpusim, wheel, sources.
reproducible: $(VENV)/dev
	$(BIN)/python -m tests.sdk.reproducible build/reproducible $(REPRODUCIBLE_FLAGS)

# --- the rest --------------------------------------------------------------------------------

format: $(VENV)/dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CXX_SOURCES)

# The picture of a simulation in docs/simulate.md; needs Chromium.
screenshot: $(VENV)/npusim $(VENV)/dev
	$(BIN)/python -m tests.simulate.screenshot

docs: $(VENV)/npusim $(VENV)/dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --site-dir site

wheel: $(VENV)/dev
	$(BIN)/python -m pip wheel --quiet $(PIP_FLAGS) --no-deps $(PIP_BUILD) -w dist .

# The wheel as users install it, in an environment of its own that borrows only the dependencies:
# a path in a .pth file brings packages and runs none of their .pth files, so no editable install.
WHEEL_ENV := build/wheel-env
SITE = lib/python$$($(BIN)/python -c 'import sys; print("%d.%d" % sys.version_info[:2])')/site-packages
WHEEL_TESTS := tests/runtime/test_executor.py tests/cli/test_readme.py tests/cli/test_compile.py \
  tests/codegen/test_source.py
check-wheel: $(VENV)/npusim $(VENV)/dev
	rm -rf dist $(WHEEL_ENV)
	$(MAKE) wheel
	$(BIN)/python -m venv --without-pip $(WHEEL_ENV)
	echo $(CURDIR)/$(VENV)/$(SITE) > $(WHEEL_ENV)/$(SITE)/dependencies.pth
	$(BIN)/python -m pip --python $(WHEEL_ENV)/bin/python install --quiet --no-deps dist/npusim-*.whl
	$(WHEEL_ENV)/bin/python -m pytest $(WHEEL_TESTS) -q -n $(JOBS)
	[ "$$(uname)" != Linux ] || $(WHEEL_ENV)/bin/python -m tests.sdk.wheel dist/npusim-*.whl build/wheel-sdk

# The wheels of every platform that Zig's cross compiler builds here, checked and run as far as this
# machine can, and installed by name from an index on it; docs/platforms.md has the table.
#   WHEELS_FLAGS="--only linux-x86_64"    one of them
#   WHEELS_FLAGS=--write-docs             writes the table
wheels: $(VENV)/dev
	$(BIN)/python -m tests.wheels build/wheels dist $(WHEELS_FLAGS)

clean:
	rm -rf build $(VENV) dist site
