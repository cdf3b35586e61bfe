# Copyright (c) 2026 the gpufleet.vllm authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

PYTHON3 ?= python3
HOSTS ?= 3
# How many labs the tests use side by side: they wait more than they work.
LABS ?= 3
# How many processes share the unit tests: they do work.
UNITS ?= 3
VENV := $(CURDIR)/.venv
PY := $(VENV)/bin/python
# The oldest supported ansible-core is in the one, the newest in the other.
NEWEST := $(CURDIR)/.venv-newest
LAB := PYTHONPATH=tests $(PY) -m lab

# The environment's tools come first, so that no shim of a version manager gets between them.
export PATH := $(VENV)/bin:$(PATH)
export PYTHONDONTWRITEBYTECODE := 1
# Everything here runs as Ansible will be, not as it was: without a variable for each fact.
export ANSIBLE_INJECT_FACT_VARS := false

.DEFAULT_GOAL := help
.PHONY: help venv venv-newest lint sanity sanity-all unit lab-test lab-all lab-newest lab-newest-all lab-real lab-real-all test test-all bench chaos build release docs demo lab-up lab-down lab-status clean

help: ## Show what there is to make
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: ## Make or refresh the virtual environment in .venv
	@$(PYTHON3) tests/gates/make_venv.py $(VENV)

venv-newest: ## Make or refresh the one with the newest ansible-core, in .venv-newest
	@$(PYTHON3) tests/gates/make_venv.py --newest $(NEWEST)

demo: venv ## Watch three hosts swap from one model to another, without a GPU (root; DEMO_KEEP=0 ends the lab after)
	@$(PY) tests/demo/demo.py

test: venv venv-newest ## Run every kind of test there is, a line each: what to run before a commit (root, 25 minutes)
	@$(PY) tests/gates/stages.py

test-all: venv venv-newest ## The same with every case on hosts, and sanity of the tests themselves: every night (root, an hour)
	@$(PY) tests/gates/stages.py --all

lint: venv ## yamllint, ruff, mypy, ansible-lint, antsibull-docs, antsibull-changelog, shellcheck, and what is generated
	@$(PY) tests/gates/lint.py

sanity: venv venv-newest ## ansible-test sanity of what users install, with the oldest and the newest ansible-core side by side
	@$(PY) tests/gates/sanity.py

sanity-all: venv venv-newest ## The same with the tests' own code
	@$(PY) tests/gates/sanity.py --whole

unit: venv venv-newest ## Unit tests, and how much of plugins/module_utils they reach: pure Python, no root, a few minutes
	@$(PY) tests/gates/units.py -n $(UNITS)

lab-test: venv venv-newest ## The simulated driver, the stand-in vLLM and the playbooks on real hosts, one case of each test (root)
	@test "$$(id -u)" = 0 || { echo "The lab's hosts need root: sudo make lab-test"; exit 1; }
	@$(PY) -m pytest tests/sim tests/e2e --short -q --durations=15 -n $(LABS) --dist loadfile

lab-all: venv venv-newest ## The same with every case (root)
	@test "$$(id -u)" = 0 || { echo "The lab's hosts need root: sudo make lab-all"; exit 1; }
	@$(PY) -m pytest tests/sim tests/e2e -q --durations=15 -n $(LABS) --dist loadfile

lab-newest: venv-newest ## The playbooks with the newest ansible-core: what both tests/newest.txt and tests/short.txt list (root)
	@test "$$(id -u)" = 0 || { echo "The lab's hosts need root: sudo make lab-newest"; exit 1; }
	@$(NEWEST)/bin/python -m pytest @tests/newest.txt --short -q --durations=10 -n $(LABS) --dist loadfile

lab-newest-all: venv-newest ## All of tests/newest.txt (root)
	@test "$$(id -u)" = 0 || { echo "The lab's hosts need root: sudo make lab-newest-all"; exit 1; }
	@$(NEWEST)/bin/python -m pytest @tests/newest.txt -q --durations=10 -n $(LABS) --dist loadfile

lab-real: venv ## The real vLLM (CPU build) on a host: install, deploy, swap, roll-back, benchmark (root, 1 GB of downloads once)
	@test "$$(id -u)" = 0 || { echo "The lab's hosts need root: sudo make lab-real"; exit 1; }
	@$(PY) -m pytest tests/real --short -q --durations=10

lab-real-all: venv ## The same, and how it dies (root)
	@test "$$(id -u)" = 0 || { echo "The lab's hosts need root: sudo make lab-real-all"; exit 1; }
	@$(PY) -m pytest tests/real -q --durations=10

bench: venv ## Measure against what people do by hand, on a lab host (root)
	@PYTHONPATH=tests $(PY) -m bench.facts_cost
	@PYTHONPATH=tests:collections $(PY) -m bench.guard_cost
	@PYTHONPATH=tests:collections $(PY) -m bench.preflight
	@PYTHONPATH=tests $(PY) -m bench.reclaim
	@PYTHONPATH=tests $(PY) -m bench.crash_report
	@PYTHONPATH=tests $(PY) -m bench.swap

chaos: venv ## Disturb swaps in every way, at every moment (root; an hour): CHAOS="--seed 7 --only job:3"
	@PYTHONPATH=tests $(PY) -m chaos $(CHAOS)

docs: venv ## Build the pages and the reference into build/docs, a warning is a failure
	@$(PY) tests/gates/docs.py

build: venv ## Build the collection's tarball into build/
	@$(PY) tests/gates/tarball.py

release: venv ## Prove a tarball of the last commit, its swap by full name on a lab of its own included; into dist/ (root)
	@test "$$(id -u)" = 0 || { echo "The lab's hosts need root: sudo make release"; exit 1; }
	@PYTHONPATH=tests:tests/gates $(PY) -m release

lab-up: venv ## Bring up the lab: HOSTS=3
	@$(LAB) up --hosts $(HOSTS)

lab-down: venv ## Take the lab down; leaves nothing behind
	@$(LAB) down

lab-status: venv ## Say what runs in the lab
	@$(LAB) status

clean: ## Remove build products and the virtual environment
	rm -rf build dist .venv .venv-newest .mypy_cache .ruff_cache .pytest_cache tests/output
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
