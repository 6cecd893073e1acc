# `make help` explains every target. Everything is installed into this folder: .venv/ and build/.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMPS := build/stamps
ARGS ?=
# Two tests at a time for each core, for they wait a third of their time; make test PYTEST_ARGS="-n0 -k ledger" narrows them.
PYTEST_ARGS ?= -n $(shell echo $$(( $$(nproc) * 2 ))) --dist worksteal
export PYTHONDONTWRITEBYTECODE :=
export PIP_DISABLE_PIP_VERSION_CHECK := 1

K8S ?= 1.37
# Which end-to-end tests: MARKS="not nightly", MARKS=nightly, or all of them with MARKS=.
MARKS ?= not nightly
# Tests that share a cluster run in one worker (xdist_group); those that E2E_ARGS chooses in this process.
E2E = PATH="$(CURDIR)/$(BIN):$$PATH" GPUSHARE_E2E_K8S=$(K8S) $(BIN)/python -m pytest --timeout 1800 -v --durations=10 -m "$(MARKS)" \
  $(if $(E2E_ARGS),-n0,-n $(WORKERS) --dist loadgroup)
CONTROL_PLANE := etcd kube-apiserver kube-controller-manager kube-scheduler helm

.DEFAULT_GOAL := help
.PHONY: help ci nightly quick run test e2e e2e-parts e2e-virtual e2e-archives e2e-programs e2e-engines cluster images check kubectl-plugin krew release bench bench-isolation bench-cluster bench-dra bench-placement bench-departures load bench-smoke gpu-check docs docs-test format coverage fakegpu isolation lookahead clients sanitize race-isolation soak soak-slow fuzz valgrind proto lock clean

help: ## Say what each target does
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

ci: ## What a pull must pass, step by step (ARGS="test docs": only these, and what they need); logs in build/logs/
	@$(PYTHON) -m pipelines ci $(ARGS)

nightly: ## What takes too long for ci: older Kubernetes, soak, races, sanitizers, fuzzing, clients, benchmarks (ARGS=); writes build/nightly.md
	@$(PYTHON) -m pipelines nightly $(ARGS)

quick: $(STAMPS)/test fakegpu isolation lookahead proto ## Within a minute: lint, types, import contracts, and the tests closest to what changed since main (ARGS=--list: say which)
	@$(BIN)/python -m pipelines quick $(ARGS)

run: $(STAMPS)/run fakegpu isolation lookahead proto ## Start the playground, walk through the examples, stay up (ARGS=--exit: end after the walk; CLUSTER=real: on the real control plane)
	@case "$(CLUSTER)" in \
	  "") set -- ;; \
	  real) components=$$($(BIN)/python -m tests.e2e.cluster build --k8s $(K8S) $(CONTROL_PLANE)) || exit 1; \
	    set -- --control-plane "$$components" ;; \
	  *) echo "make run: CLUSTER=$(CLUSTER): leave it out, or write CLUSTER=real" >&2; exit 2 ;; \
	esac; \
	PATH="$(CURDIR)/$(BIN):$$PATH" exec $(BIN)/python -m gpushare playground "$$@" $(ARGS)

test: $(STAMPS)/test fakegpu isolation lookahead proto ## Run every test (PYTEST_ARGS=... narrows)
	@scripts/install-browser
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pytest $(PYTEST_ARGS) --cov --cov-report= --cov-config=pyproject.toml
	@$(if $(filter file,$(origin PYTEST_ARGS)),$(BIN)/python scripts/coverage_floor.py,echo "coverage is held to its floors by make test without PYTEST_ARGS alone")

e2e: WORKERS = 3
e2e: $(STAMPS)/test fakegpu isolation lookahead proto ## Bring up a real cluster, install the charts, run what a user does and what may go wrong (root; K8S=1.28 for the oldest; MARKS= with those of the night; E2E_ARGS=... narrows)
	@scripts/install-system-packages
	@scripts/install-e2e-packages
	@scripts/install-browser
	@$(MAKE) --no-print-directory e2e-programs e2e-archives
	@$(E2E) tests/e2e/test_cluster.py tests/e2e/product tests/e2e/engines $(E2E_ARGS)

e2e-parts: WORKERS = 2
e2e-parts: $(STAMPS)/test fakegpu isolation lookahead proto ## End-to-end tests of the parts: images, policies and charts on an API server, the playground beside the real control plane (K8S=, E2E_ARGS=)
	@scripts/install-system-packages
	@scripts/install-e2e-packages
	@scripts/install-c-tools
	@scripts/unpack-docker
	@$(MAKE) --no-print-directory e2e-programs e2e-archives
	@$(E2E) tests/e2e --ignore=tests/e2e/test_cluster.py --ignore=tests/e2e/product --ignore=tests/e2e/engines $(E2E_ARGS)

e2e-virtual: SECURITY = apparmor
e2e-virtual: $(STAMPS)/test fakegpu isolation lookahead proto ## End-to-end tests of what depends on the kernel, in a virtual machine with cgroup version 2 (root; SECURITY=apparmor or selinux; E2E_ARGS=)
	@scripts/install-system-packages
	@scripts/install-e2e-packages
	@scripts/install-virtual-machine
	@$(MAKE) --no-print-directory e2e-programs e2e-archives
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m tests.e2e.virtual --security $(SECURITY) -- \
	  env GPUSHARE_E2E_K8S=$(K8S) $(BIN)/python -m pytest -n0 -v --durations=10 tests/e2e/product/test_kernel.py $(E2E_ARGS)

e2e-archives: # The images, of packages and Python alone
	@$(BIN)/python -m images all

e2e-programs: # The components, of Go modules
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m tests.e2e.cluster build --k8s $(K8S) $(HOST:%=--host %)

e2e-engines: # The managers of engines that run beside the product, of Go modules
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m tests.e2e.engines

cluster: $(STAMPS)/run fakegpu ## Bring up the real components as a cluster and stay up (root; ARGS="--nodes 3 --k8s 1.28 --label" and more)
	@scripts/install-e2e-packages
	@PATH="$(CURDIR)/$(BIN):$$PATH" PYTHONPATH=src $(BIN)/python -m tests.e2e.cluster up --k8s $(K8S) $(ARGS)

check: $(STAMPS)/test proto ## Lint, types, import arrows
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	PYTHONPATH=src $(BIN)/lint-imports --no-cache
	$(BIN)/python scripts/house_rules.py

kubectl-plugin: ## Write kubectl-inspect-cgpu as one file that any Python from 3.9 on runs, into build/
	@$(PYTHON) plugins/kubectl/build.py build/kubectl-inspect-cgpu

krew: kubectl-plugin ## Pack the plugin for krew and fill its manifest, into build/ (VERSION=v1.2.3 ADDRESS=https://...)
	@$(PYTHON) plugins/kubectl/krew.py build/kubectl-inspect-cgpu build "$(VERSION)" "$(ADDRESS)"

release: ## Set the version, date the changelog, write everything that users install into build/release/ (VERSION=1.2.3, without: that of the tag; DRY_RUN=1, TAG=1, ADDRESS=https://...)
	@$(PYTHON) -m pipelines.release $(VERSION) $(if $(ADDRESS),--address "$(ADDRESS)") $(if $(filter 1,$(DRY_RUN)),--dry-run) $(if $(filter 1,$(TAG)),--tag)

images: $(STAMPS)/run ## Write the container images into build/images/ (Debian only; ARGS=product: that one alone)
	@$(BIN)/python -m images $(or $(ARGS),all)

bench: $(STAMPS)/test fakegpu isolation lookahead proto ## Measure, write build/figures/bench.json, compare with benchmarks/budgets.json
	@scripts/install-browser
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m benchmarks $(ARGS)

bench-isolation: $(STAMPS)/test ## Accuracy and cost of isolation, on the fake driver; writes build/figures/isolation.json (ARGS="cost --quick"; HAMI=DIR with its libvgpu.so: beside HAMi-core; PEER="NAME:ENV=... LD_PRELOAD=...")
	@PATH="$(CURDIR)/$(BIN):$$PATH" PYTHONPATH=src $(BIN)/python -m benchmarks.isolation $${PEER:+--peer "$$PEER"} $${HAMI:+--hami "$$HAMI"} $(ARGS)

bench-cluster: $(STAMPS)/test lookahead proto ## Pods per second on a real control plane, with our extender and without (ARGS="--binaries DIR")
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m benchmarks.cluster $(ARGS)

bench-dra: $(STAMPS)/test fakegpu isolation proto ## What ResourceClaims cost on a real control plane and in the node agent; writes build/figures/dra.json (ARGS="claims --binaries DIR")
	@PATH="$(CURDIR)/$(BIN):$$PATH" PYTHONPATH=src $(BIN)/python -m benchmarks.dra $(ARGS)

bench-placement: $(STAMPS)/test lookahead ## GPU allocation per placement policy on the openb traces, beside the paper's; writes build/figures/placement.json (TRACES=DIR: every pod list there; ARGS="default --seeds 1")
	@PATH="$(CURDIR)/$(BIN):$$PATH" PYTHONPATH=src $(BIN)/python -m benchmarks.placement $(if $(TRACES),--traces "$(TRACES)") $(ARGS)

bench-departures: $(STAMPS)/test lookahead ## GPU allocation and waiting per placement policy while the pods of an openb trace come and go (ARGS="gpushare60 --load 95 --seeds 3")
	@PATH="$(CURDIR)/$(BIN):$$PATH" PYTHONPATH=src $(BIN)/python -m benchmarks.placement.departures $(ARGS)

load: $(STAMPS)/test fakegpu lookahead proto ## Flood and stall every port of the product, with latency, probes and memory measured; writes build/figures/load.json (ARGS="--door webhook --kind slow")
	@PATH="$(CURDIR)/$(BIN):$$PATH" PYTHONPATH=src $(BIN)/python -m benchmarks.load $(ARGS)

# What is measured in so short a run says nothing, so two may run beside each other; the longest begins first.
BENCHMARKS := bench bench-cluster bench-dra bench-isolation gpu-check bench-placement bench-departures load
bench-smoke: $(STAMPS)/test fakegpu isolation lookahead proto ## Start every benchmark for a few seconds; fails where one does not run or leaves out a figure (ONLY="bench-cluster gpu-check": those)
	@scripts/install-browser
	@$(MAKE) --no-print-directory -k -j2 --output-sync=target $(patsubst %,smoke-%,$(or $(ONLY),$(BENCHMARKS)))

smoke-%:
	@begun=$$(date +%s); timeout --foreground -k 10 300 $(MAKE) --no-print-directory $* ARGS=--quick DRIVER=fakegpu TRACES= PEER= HAMI= \
	  || { echo "FAILED: make $* ARGS=--quick, after $$(( $$(date +%s) - begun )) s"; exit 1; }; \
	echo "make $* ARGS=--quick: ran for $$(( $$(date +%s) - begun )) s"

gpu-check: ## Check isolation on this machine's NVIDIA driver; needs neither network nor .venv (DRIVER=fakegpu: the fake driver; SECTION=memory: that alone; HAMI=DIR: beside HAMi-core; ARGS="--out DIR")
	@PYTHONPATH="src$${PYTHONPATH:+:$$PYTHONPATH}" $(PYTHON) -m benchmarks.gpu_check $(if $(DRIVER),--driver $(DRIVER)) $(if $(SECTION),--section $(SECTION)) $${HAMI:+--hami "$$HAMI"} $(ARGS)

docs: $(STAMPS)/docs proto ## Build the documentation as a site into build/site, with every link checked
	@PYTHONPATH="src:." $(BIN)/python -m documentation

docs-test: $(STAMPS)/test $(STAMPS)/docs fakegpu isolation lookahead proto ## Type the documentation's commands into a playground, search its site (DOCS_ARGS="-k tutorial" narrows)
	@scripts/install-browser
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pytest -n2 --dist loadgroup -v tests/docs $(DOCS_ARGS)

format: $(STAMPS)/test ## Format the Python code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Tests and benchmarks build the same, under the same locks.
fakegpu: ## Build the fake NVIDIA driver into build/fakegpu/
	@mkdir -p build/fakegpu && flock build/fakegpu/lock $(MAKE) --no-print-directory --silent -C fakegpu

isolation: ## Build the isolation libraries into build/isolation/
	@mkdir -p build/isolation && flock build/isolation/lock $(MAKE) --no-print-directory --silent -C isolation

lookahead: ## Build the library of placement by fragmentation beside its module (the product also works without)
	@mkdir -p build/lookahead && flock build/lookahead/lock $(MAKE) --no-print-directory --silent -C lookahead

clients: $(STAMPS)/test fakegpu isolation ## Run PyTorch, Triton, JAX, numba-cuda and Ray as their wheels come on the fake driver, without limits and with them (2 GB to fetch, 4 GB in build/clients; ARGS=pytorch: that alone)
	@PATH="$(CURDIR)/$(BIN):$$PATH" PYTHONPATH=src $(BIN)/python -m tests.clients $(ARGS)

sanitize: $(STAMPS)/test ## Build and run the C tests under the sanitizers
	@$(MAKE) --no-print-directory --silent -C fakegpu sanitize
	@$(MAKE) --no-print-directory --silent -C isolation sanitize
	@$(MAKE) --no-print-directory --silent -C lookahead sanitize
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pytest $(PYTEST_ARGS) -m "" tests/unit/fakegpu tests/unit/isolation tests/integration/isolation tests/unit/ledger/test_lookahead.py \
	  -k "sanitize or [address or [thread or found_again"

valgrind: $(STAMPS)/test fakegpu isolation ## Run the C tests that need no speed under valgrind (scripts/install-c-tools installs it)
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pytest $(PYTEST_ARGS) tests/valgrind

fuzz: ## Fuzz what others may have written: usage file, limits, description (FUZZ_SECONDS=600 for each, side by side; needs clang)
	@$(MAKE) --no-print-directory --silent -C tests/fuzz fuzz

soak: $(STAMPS)/test fakegpu isolation lookahead proto ## Randomized tests, with other examples each round, until one fails (MINUTES=10)
	@end=$$(( $$(date +%s) + 60 * $(or $(MINUTES),10) )); round=0; \
	while [ $$(date +%s) -lt $$end ]; do \
		round=$$((round + 1)); echo "round $$round, $$(( (end - $$(date +%s)) / 60 + 1 )) minutes left"; \
		GPUSHARE_SOAK=1 $(BIN)/python -m pytest $(PYTEST_ARGS) --no-cov -q -m "hypothesis or randomized" tests/unit tests/integration || exit 1; \
	done

SLOW_TESTS := $(patsubst %,tests/integration/%,nodeagent kubelet scheduler kube apiserver admission inspect)

soak-slow: $(STAMPS)/test fakegpu isolation lookahead proto ## Integration tests with sockets that are slow at random (SLOW_MS=200, SLOW_TESTS=...)
	SLOW_SOCKETS_MS=$(or $(SLOW_MS),200) PYTHONPATH=$(CURDIR)/scripts/slow_sockets PATH="$(CURDIR)/$(BIN):$$PATH" \
		$(BIN)/python -m pytest -n4 --no-cov -q -W ignore::ResourceWarning -W ignore::pytest.PytestUnraisableExceptionWarning \
		$(SLOW_TESTS)

race-isolation: $(STAMPS)/test fakegpu isolation ## Processes of a container race for its memory, many are killed (ARGS="--seconds 60 --processes 64 --kills 1000")
	@$(BIN)/python -m tests.integration.isolation.racing $(ARGS)

proto: $(STAMPS)/run ## Generate the kubelet's gRPC stubs
	@$(BIN)/python scripts/generate_stubs.py

# What stands in for it is built (tests/clients/standins.py), and what names it all.
NOT_CLIENTS := cuda-toolkit nvidia-cublas nvidia-cuda-cccl nvidia-cuda-cupti nvidia-cudnn-cu13 nvidia-cufft nvidia-cufile \
  nvidia-cusolver nvidia-cusparse nvidia-cusparselt-cu13 nvidia-nccl-cu13 nvidia-nvshmem-cu13 nvidia-nvtx

lock: $(STAMPS)/test ## Pin the requirements with hashes
	$(BIN)/python -m pip install --quiet uv
	for name in product run test docs; do \
	  $(BIN)/uv pip compile --quiet --no-emit-index-url --generate-hashes --no-header --upgrade \
	    --python-version 3.11 requirements/$$name.in -o requirements/$$name.txt || exit 1; done
	$(BIN)/uv pip compile --quiet --no-emit-index-url --generate-hashes --no-header --upgrade $(NOT_CLIENTS:%=--no-emit-package %) \
	  --python-version 3.11 requirements/clients.in -o requirements/clients.txt

clean: ## Remove what was built and installed here
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage*

$(STAMPS)/venv:
	@PYTHON="$(PYTHON)" scripts/make-venv $(VENV)
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/run: $(STAMPS)/venv requirements/run.txt pyproject.toml
	@scripts/install-requirements $(BIN)/python requirements/run.txt
	@touch $@

$(STAMPS)/test: $(STAMPS)/run requirements/test.txt
	@scripts/install-requirements $(BIN)/python requirements/test.txt
	@touch $@

$(STAMPS)/docs: $(STAMPS)/run requirements/docs.txt
	@scripts/install-requirements $(BIN)/python requirements/docs.txt
	@touch $@
