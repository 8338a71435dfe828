# Everything goes through .venv at the root; each target does its own set-up.
.DEFAULT_GOAL := help
SHELL := /bin/bash -o pipefail
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
DEMO := runs/demo
DEMO_MADE := $(addprefix $(DEMO)/,standalone standalone-scaled fedssa demo.png)

.PHONY: help demo docs site golden mutants fuzz test test-torch test-system system-packages check format bench clean

help:
	@echo "make demo         run the quickstart with FedSSA and with Standalone, and draw the result"
	@echo "make test         all tests that pip alone can run"
	@echo "make test-torch   those that train, without the C kernels"
	@echo "make test-system  tests with real programs besides ours"
	@echo "make golden       write the golden records of this machine again (a change of results)"
	@echo "make docs         write the tables and pictures again that the program can make, and build the site: site/index.html"
	@echo "make mutants      put mistakes into a copy of the sources and see which ones the tests miss (an hour)"
	@echo "make fuzz         give the program mistakes of every kind and count what becomes of them (CASES, SECONDS of each part; JOBS)"
	@echo "make check        format, lint, types, import contracts, make test, docs"
	@echo "make bench        measure this machine: benchmarks/results.md (PARTS=growth: only N, S, T and many runs, printed)"
	@echo "make clean        remove the environment, caches, the demo and the site; your runs stay"

$(VENV)/.base: pyproject.toml constraints.txt setup.py $(wildcard src/fedssa/kernels/*.[ch])
	@echo "setting up $(VENV) …"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) -e '.[report]'
	@touch $@

$(VENV)/.dev: $(VENV)/.base
	@$(PIP) -e '.[dev]'
	@touch $@

$(VENV)/.system: $(VENV)/.dev
	@$(PIP) -e '.[dev,ray]'
	@touch $@

# Programs of the system that tests run: Debian packages and program, installed if it is not there.
SYSTEM_PACKAGES := chromium:chromium nginx-light:nginx qemu-user-static:qemu-aarch64-static \
	gcc-aarch64-linux-gnu,libc6-dev-arm64-cross:aarch64-linux-gnu-gcc

system-packages:
	@for pair in $(SYSTEM_PACKAGES); do \
		PATH=$$PATH:/usr/sbin command -v $${pair#*:} >/dev/null && continue; \
		packages=$${pair%:*}; packages=$${packages//,/ }; \
		echo "installing $$packages …"; \
		sudo=; test $$(id -u) = 0 || sudo=sudo; \
		$$sudo apt-get update -qq && $$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y \
			--no-install-recommends $$packages >/dev/null || exit $$?; done

demo: $(VENV)/.base
	@rm -rf $(DEMO_MADE)
	@for method in standalone standalone-scaled fedssa; do \
		$(BIN)/fedssa run recipes/quickstart.toml --method $$method --out $(DEMO)/$$method >/dev/null || exit $$?; done
	@echo
	@$(BIN)/fedssa show $(DEMO)/standalone $(DEMO)/standalone-scaled $(DEMO)/fedssa --figure $(DEMO)/demo.png
	@echo "models:  $(DEMO)/fedssa/models; load one in $(BIN)/python:"
	@echo "         import fedssa; model = fedssa.load_client('$(DEMO)/fedssa', 0)"

# What one process has compiled the others need not: without it, every worker compiles all tests, and every program all
# sources, which takes a minute of each core.
test test-torch test-system: export PYTHONDONTWRITEBYTECODE :=

test: $(VENV)/.dev
	@$(BIN)/python -m pytest -n 2 -m 'not system'

# All that reads samples or convolves; methods, and what reads data, records and pages, know no kernel.
KERNELS := $(addprefix tests/,core golden kernels models simulate test_runtimes_agree.py)

test-torch: $(VENV)/.dev
	@FEDSSA_KERNEL=torch $(BIN)/python -m pytest -n 2 -m 'not system' $(KERNELS)

test-system: $(VENV)/.system system-packages
	@$(BIN)/python -m pytest -n 2 --dist loadfile -m system  # many of them wait more than they compute

golden: $(VENV)/.dev
	@$(BIN)/python -m tests.golden --write

docs: $(VENV)/.dev
	@$(BIN)/python -m tests.derived
	@$(MAKE) --no-print-directory site

# Not quiet: what is wrong with a page is told among the rest.
site: $(VENV)/.dev
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

mutants: $(VENV)/.dev
	@$(BIN)/python -m tests.mutants

CASES ?= 1000000
SECONDS ?= 300
JOBS ?= 1

fuzz: $(VENV)/.dev
	@$(BIN)/python -W ignore -m tests.fuzz --cases $(CASES) --seconds $(SECONDS) --jobs $(JOBS)

format: $(VENV)/.dev
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix .

check: $(VENV)/.dev
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(MAKE) --no-print-directory site
	@$(MAKE) --no-print-directory test

bench: $(VENV)/.dev
	@$(BIN)/python -m benchmarks $(PARTS)

clean:
	rm -rf $(VENV) .venv-flower build dist site src/*.egg-info $(DEMO_MADE)
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
