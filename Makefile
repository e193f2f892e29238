# Every target sets up what it needs; a second call installs nothing. `make help` lists them.
SHELL := /bin/bash
PYTHON ?= $(shell for p in python3.11 python3 python3.12 python3.13; do $$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null && echo $$p && break; done)
RUN_PYTHON := .venv/bin/python
NO_PYTHON = Python must be 3.11, 3.12 or 3.13, got none of these on the PATH; install Python 3.11 or name it: make PYTHON=/path/to/python3.11
# Containers often forbid bytecode; then every process would compile torch, transformers and vLLM anew, 27 s of a run's start.
unexport PYTHONDONTWRITEBYTECODE
# Two processes with a thread each, files whole: fixtures of a file start engines.
SIDE_BY_SIDE := --numprocesses=2 --dist=loadfile --no-loadscope-reorder
# Recipes read it from the environment, where no space or quotation mark in it means anything.
export RUN
HOST ?= 127.0.0.1
PORT ?= 6006
EXPERIMENTS := $(basename $(notdir $(sort $(wildcard experiments/*.yaml experiments/recipes/*.yaml)) $(sort $(wildcard studies/*/*.yaml))))

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup setup-dev setup-bench test experiment tensorboard report transcripts chat bench bench-gpu adapters lint format requirements clean run-named experiment-known run-there

help: ## what each target does
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-13s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

setup: ## .venv with the pinned packages (ACCELERATOR=gpu for a model of your own on a GPU, else for the CPU)
	@$(if $(PYTHON),$(PYTHON) requirements/install.py,echo "$(NO_PYTHON)" >&2; exit 2)

setup-dev:
	@$(if $(PYTHON),$(PYTHON) requirements/install.py --dev --extra bench,echo "$(NO_PYTHON)" >&2; exit 2)

setup-bench: setup # also what the comparison with TRL in `make bench` needs
	@$(PYTHON) requirements/install.py --extra bench

test: setup-dev ## the whole test suite (ARGS="-m 'not engine'" leaves out what starts engines)
	@OMP_NUM_THREADS=1 $(RUN_PYTHON) -m pytest $(SIDE_BY_SIDE) $(ARGS)

experiment: experiment-known setup ## train and evaluate: EXP=adaptive_curriculum ARGS="seed=1 ..."
	@$(RUN_PYTHON) -m experiments $(EXP) $(ARGS)

tensorboard: run-there setup ## the dashboards of all runs, on loopback (RUN=runs/... for one, PORT=6006)
	@echo "open http://$(HOST):$(PORT)/#custom_scalars"
	@$(RUN_PYTHON) -m tensorboard.main --logdir "$${RUN:-runs}" --host $(HOST) --port $(PORT)

report: run-named setup ## one HTML page about a run or a sweep, finished or not: RUN=runs/<experiment>/<name>
	@$(RUN_PYTHON) -m analysis report "$$RUN" $(ARGS)

transcripts: run-named setup ## all dialogues of a run on one page, to filter and search: RUN=... (ARGS=--steps explains each change)
	@$(RUN_PYTHON) -m analysis transcripts "$$RUN" $(ARGS)

chat: simulator/chat.py setup ## talk to a simulated user yourself
	@$(RUN_PYTHON) -m simulator chat $(ARGS)

bench: setup ## throughput and overheads with their ceilings, to bench.json (ARGS="--only training"; TRL: make setup-bench)
	@$(RUN_PYTHON) -m experiments.bench $(ARGS)

bench-gpu: setup ## an update and rollouts of a Qwen2.5-shaped model in bf16 on one GPU, to bench_gpu.json (ARGS="--size 3b --checkpointing")
	@$(RUN_PYTHON) -m studies.speed.bench_gpu $(ARGS)

adapters: setup ## each adapter with its host, in throw-away environments (HOSTS="verifiers openenv"; minutes, hundreds of MB)
	@$(RUN_PYTHON) -m requirements.hosts $(HOSTS)

lint: setup-dev ## ruff, mypy and the direction of imports
	@failed=0; for check in "ruff check ." "ruff format --check --quiet ." mypy lint-imports; do .venv/bin/$$check || failed=1; done; exit $$failed

format: setup-dev ## rewrite the code the way ruff formats it
	@.venv/bin/ruff check --fix . ; .venv/bin/ruff format .

requirements: ## resolve the pinned lists anew from setup.cfg (ARGS=--upgrade moves to newer versions)
	@$(PYTHON) -m requirements.resolve $(ARGS)

clean: ## remove .venv and caches; runs/ stays
	@rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .import_linter_cache build *.egg-info; find . -name __pycache__ -type d -prune -exec rm -rf {} +

# What a target needs, refused before anything is installed.
run-named:
	@$(if $(RUN),:,echo "RUN must name the folder of a run or a sweep, got ''; e.g. make report RUN=runs/adaptive_curriculum/<name>" >&2; exit 2)

experiment-known:
	@$(if $(filter $(EXP),$(EXPERIMENTS)),:,echo "EXP must be one of $(EXPERIMENTS), got '$(EXP)'" >&2; exit 2)

run-there:
	@[ -z "$$RUN" ] || [ -d "$$RUN" ] || { echo "RUN must name a folder with runs, got '$$RUN'; there is no such folder" >&2; exit 2; }

simulator/chat.py:
	@echo "make $(MAKECMDGOALS) needs $@, which is not built yet" >&2; exit 2
