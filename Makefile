# `make demo` and `make test` are all the set-up there is. Everything is built once, in the release profile.

CARGO ?= cargo
# Property tests draw the same cases every time; `make fuzz` draws new ones.
export PROPTEST_RNG_SEED ?= 1
.PHONY: demo demo-report test build check fmt lint doc docs-check schemas bench setup clean

## Measure, plan, simulate, train and compare on this machine; results in demo/, which git ignores.
demo: build
	./target/release/spipe demo

## The same into reports/demo/, the committed report.
demo-report: build
	./target/release/spipe demo -o reports/demo

## Everything that must hold: format, lints, schemas, tests, doc tests, docs, a short demo, the features of GPUs.
test: setup fmt lint schemas unit doc demo-short cuda-check
	@echo "make test: all good"

## What the build needs from the system (cmake and libclang, for the HiGHS solver).
setup:
	@./crates/spipe-planner/highs/setup.sh

build: setup
	$(CARGO) build --release --locked

.PHONY: unit demo-short cuda-check
unit: setup
	$(CARGO) test --release --locked --workspace

.PHONY: fuzz
fuzz: setup
	env -u PROPTEST_RNG_SEED $(CARGO) test --release --locked --workspace --no-fail-fast

.PHONY: fuzz-coverage
## Each fuzz target for SECONDS, guided by coverage, from the corpus; findings are left in crates/fuzz/artifacts. It needs a
## C++ compiler. Inputs found are kept beside the build, so that the next run goes on from them.
SECONDS ?= 60
FUZZ_TARGETS ?= quantities hardware model config plan trace order pipeline
fuzz-coverage:
	crates/fuzz/run.sh $(SECONDS) $(FUZZ_TARGETS)

fmt:
	$(CARGO) fmt --all --check

lint: setup
	$(CARGO) clippy --release --locked --workspace --all-targets -- -D warnings

doc: setup
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --release --locked --workspace --no-deps

## The committed schemas are those of the code.
schemas: build
	@mkdir -p target/schemas
	@for name in model hardware runtime plan program trace runs catalogue job; do \
	  ./target/release/spipe schema $$name > target/schemas/$$name.json || exit 1; \
	  diff -u crates/schemas/$$name.json target/schemas/$$name.json || { \
	    echo "crates/schemas/$$name.json is stale: run make update-schemas"; exit 1; }; \
	done

.PHONY: update-schemas
update-schemas: build
	@mkdir -p crates/schemas
	@for name in model hardware runtime plan program trace runs catalogue job; do ./target/release/spipe schema $$name > crates/schemas/$$name.json || exit 1; done

## The demo in a short form, away from the committed reports.
demo-short: build
	./target/release/spipe demo --steps 3 -o target/demo-short

.PHONY: test-torch
PYTHON_TESTS := crates/spipe-export/tests/python
TORCH_ENV := target/torch-env
# A network that does not answer ends the installation, instead of holding it up.
PIP_INSTALL = bin/pip install --quiet --progress-bar off --timeout 60 --retries 2
PIP = timeout 2400 $(TORCH_ENV)/$(PIP_INSTALL)
# Its readers need protobuf alone.
CHAKRA := mlc-chakra==1.0.0
MEGATRON := megatron-core==0.16.1
# With what its configuration and models import.
TORCHTITAN := torchtitan==0.3.0 torchdata==0.11.0 torch_checkpointing==0.1.1 spmd_types==0.2.3 tyro==1.0.17 docstring_parser==0.18.0 \
  typeguard==4.6.1 tensorboard==2.21.0 absl-py==2.5.1
## Exports run by PyTorch itself, from PyPI, in a virtual environment of its own: losses, logits, traces, refusals.
test-torch: build $(TORCH_ENV)/ready
	cd $(PYTHON_TESTS) && OMP_NUM_THREADS=1 SPIPE=$(CURDIR)/target/release/spipe \
	  timeout 1500 $(CURDIR)/$(TORCH_ENV)/bin/python -B -m unittest -v

.PHONY: test-torch-all
## The same, and interpreted programs of the demo's model for every system and family, and the steps of gpu-check-torch on cores.
test-torch-all: test-torch
	cd $(PYTHON_TESTS) && OMP_NUM_THREADS=1 SPIPE=$(CURDIR)/target/release/spipe \
	  timeout 3000 $(CURDIR)/$(TORCH_ENV)/bin/python -B -m unittest -v all_programs all_parity all_kinds all_gpu_check

$(TORCH_ENV)/ready: $(PYTHON_TESTS)/requirements.txt
	@python3 -c 'import ensurepip, venv' || { echo "venv is missing (Debian: python3-venv)"; exit 1; }
	python3 -m venv $(TORCH_ENV)
	@echo "installing PyTorch and others into $(TORCH_ENV): 3 GB to fetch, 6 GB on disk"
	@$(PIP) -r $< && $(PIP) --no-deps $(CHAKRA) $(MEGATRON) $(TORCHTITAN) || { \
	  echo "PyTorch could not be installed into $(TORCH_ENV): is there a network, and room? make test-torch tries again"; exit 1; }
	touch $@

.PHONY: export-error
## Iterations of exported plans, predicted and measured under PyTorch: reports/export-error.md. On a shared machine:
## make export-error PRIORITY="nice -n -20". Real-time priorities starve the copies, whose threads share cores with computation.
## EXPORT_ERROR="--rounds 1 --keep FILE" does a round and keeps it for the next time.
PRIORITY ?=
EXPORT_ERROR ?=
export-error: build $(TORCH_ENV)/ready
	cd $(PYTHON_TESTS) && OMP_NUM_THREADS=1 SPIPE=$(CURDIR)/target/release/spipe \
	  timeout 3000 $(PRIORITY) $(CURDIR)/$(TORCH_ENV)/bin/python -B export_error.py $(CURDIR)/reports/export-error.md $(EXPORT_ERROR)

## The features of GPUs build without a CUDA toolkit; all of them are in the executor, whose build does not need HiGHS again.
cuda-check: setup
	$(CARGO) check --release --locked -p spipe-exec --features cuda,wgpu

.PHONY: nvrtc-check
NVRTC_ENV := target/nvrtc-env
## The CUDA source of every kernel, compiled by NVRTC without a GPU or a CUDA toolkit: the compiler comes from PyPI, in a virtual
## environment of its own. CubeCL's compiler is built without optimisation, in target/kernels.
nvrtc-check: $(NVRTC_ENV)/ready
	$(CARGO) build --locked --manifest-path crates/spipe-exec/kernel-sources/Cargo.toml --target-dir target/kernels
	cuda=$$(echo $(CURDIR)/$(NVRTC_ENV)/lib/python3*/site-packages/nvidia/cu13); \
	  CUDA_PATH=$$cuda LD_LIBRARY_PATH=$$cuda/lib timeout 600 target/kernels/debug/kernel-sources target/kernels/sources

.PHONY: driver-check
## What runs ask of CUDA's driver, without a GPU: a C program plays it, kernels are compiled by NVRTC and do nothing. Half an hour, most of it
## the build with CUDA and the tuner's kernels; DRIVER_CACHE names a folder that keeps the latter.
driver-check: setup $(NVRTC_ENV)/ready
	$(CARGO) build --release --locked --target-dir target/cuda -p spipe --features cuda
	cd crates/spipe-exec/tests/driver && SPIPE=$(CURDIR)/target/cuda/release/spipe timeout 3000 $(CURDIR)/$(NVRTC_ENV)/bin/python -B -m unittest -v

$(NVRTC_ENV)/ready: crates/spipe-exec/kernel-sources/requirements.txt
	@python3 -c 'import ensurepip, venv' || { echo "venv is missing (Debian: python3-venv)"; exit 1; }
	python3 -m venv $(NVRTC_ENV)
	@timeout 600 $(NVRTC_ENV)/$(PIP_INSTALL) -r $< || { \
	  echo "NVRTC could not be installed into $(NVRTC_ENV): is there a network? make nvrtc-check tries again"; exit 1; }
	touch $@

## Our plans beside the baselines' for every shipped model and machine: reports/planner.md.
.PHONY: planner-report
planner-report: build
	./target/release/spipe reproduce planner -o reports

bench: setup
	$(CARGO) bench --profile release --locked --workspace --bench simulator --bench planner --bench plans --bench whatif --bench executor

.PHONY: bench-whatif
## At least 10,000 composed machines for a model of 34 layers, of which at least 2,000 are unlike in speed or memory: how they
## were decided, and the time on two threads.
bench-whatif: build
	@cd reports/whatif && bash -c 'time ../../target/release/spipe whatif ten-thousand.toml --as-of 2026-11-27 \
	  --threads 2 --shard 1/1 -o ../../target/ten-thousand.json'

.PHONY: bench-pytorch
## Optimizer and tokens per second beside PyTorch, turn by turn in one run. PYTHON needs torch (pip install torch).
PYTHON ?= python3
bench-pytorch: setup
	$(CARGO) build --release --locked --workspace --example paired
	$(PYTHON) crates/spipe-exec/benches/pytorch/paired.py target/release/examples/paired

.PHONY: bench-offloading
## Offloading systems of 200 million parameters beside PyTorch on the same cores, and the optimizer in a run beside itself alone. PYTHON
## needs torch. A quarter of an hour.
bench-offloading: build
	$(PYTHON) -B crates/spipe-exec/benches/pytorch/offloading.py target/release/spipe

.PHONY: prediction-error
## Iterations of several systems, predicted and measured on this machine: reports/prediction-error.md.
prediction-error: build
	./target/release/spipe prediction-error

.PHONY: gallery
## The chart of every system, with what to see in it: reports/gallery.md.
gallery: build
	SPIPE=target/release/spipe crates/spipe-cli/scripts/gallery.sh

.PHONY: pages-check
## Reports and timelines in headless Chromium (Debian: chromium, nodejs, npm). Screenshots in target/pages/.
pages-check: build
	@command -v node > /dev/null || { echo "node is missing (Debian: nodejs npm)"; exit 1; }
	@test -x "$${CHROMIUM:-/usr/bin/chromium}" || { echo "Chromium is missing (Debian: chromium), or name it with CHROMIUM"; exit 1; }
	cd crates/spipe-timeline/browser && npm install --no-package-lock --no-audit --no-fund --silent
	node crates/spipe-timeline/browser/pages.mjs target/release/spipe target/pages

.PHONY: gpu-check
DEVICE ?= cuda:0
## Rates, systems under a cap beside their predictions and PyTorch, and parity of a device within nine minutes: reports/gpu/. It
## wants a built spipe (SPIPE names another one) and Python, no toolchain; it goes on where it was stopped. GPU_CHECK="--skip
## rates" leaves steps out; --help names all options.
GPU_CHECK ?=
gpu-check:
	$(PYTHON) -B crates/spipe-cli/scripts/device_check.py $(DEVICE) $(GPU_CHECK)

.PHONY: gpu-check-short
## Its first steps on cores that emulate a GPU, away from the committed reports, and the size of tree and binary.
gpu-check-short: build
	cd crates/spipe-cli/scripts && SPIPE=$(CURDIR)/target/release/spipe $(PYTHON) -B -m unittest -v test_device_check

.PHONY: gpu-check-torch
## Exported plans on a GPU beside their predictions and a plain loop, within four minutes: reports/gpu/cuda-0/torch.md. It wants a
## built spipe (SPIPE names another one) and PyTorch in PYTHON, no toolchain.
gpu-check-torch:
	$(PYTHON) -B crates/spipe-export/scripts/gpu_check.py

.PHONY: software-gpu-check
## The same on a program that plays a GPU: Mesa's llvmpipe, or whatever Vulkan finds first (Debian: mesa-vulkan-drivers). First
## kernels of GPUs beside those of cores.
software-gpu-check:
	$(CARGO) test --release --locked --target-dir target/wgpu -p spipe-exec --features wgpu --lib -- fused kernel_cache
	$(CARGO) build --release --locked --target-dir target/wgpu -p spipe -p spipe-exec --features wgpu
	SPIPE=target/wgpu/release/spipe $(PYTHON) -B crates/spipe-cli/scripts/device_check.py wgpu:0 $(GPU_CHECK)
