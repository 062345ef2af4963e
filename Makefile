# egalitarian: `make` lists what there is.
PYTHON ?= python3
VENV := .venv
DEVICE ?= cpu
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check -q
STAMP := $(VENV)/.installed

.PHONY: help grok test test-slow lint types api bench noise figure examples paper results clean

help:            ## this list
	@grep -hE '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## /make \1|/' | column -t -s '|'

# Everything is installed once; a changed pyproject.toml or constraints.txt installs again.
$(STAMP): pyproject.toml constraints.txt
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install -c constraints.txt torch
	$(PIP) install -c constraints.txt -e '.[dev]'
	@touch $(STAMP)

grok: $(STAMP)   ## set up if needed, then watch networks grok: curves, a table, a picture (a minute and a half)
	$(VENV)/bin/egalitarian grok

test: $(STAMP)   ## set up if needed, then the default tests (about four minutes on two cores)
	$(VENV)/bin/python -m pytest -q -n 2 --dist worksteal

test-slow: $(STAMP)  ## the long tests: inductor, installation, the paper's EGD on three seeds (some minutes)
	$(VENV)/bin/python -m pytest -q -m slow

lint: $(STAMP)   ## ruff: lint and format
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

types: $(STAMP)  ## mypy, strict
	$(VENV)/bin/mypy

api: $(STAMP)    ## docs/api.md, from signatures and docstrings
	$(VENV)/bin/python docs/make_api.py

bench: $(STAMP)  ## what EGD costs here: kernels, a step, an experiment, into bench/; the lab's epoch against a plain program (a quarter of an hour)
	$(VENV)/bin/egalitarian bench --device $(DEVICE)
	$(VENV)/bin/python benchmarks/lab.py

noise: $(STAMP)  ## rounding noise in gradients, by precision
	$(VENV)/bin/python benchmarks/noise.py

figure: $(STAMP) ## the README's two pictures, from results/provisional; trains nothing (seconds)
	$(VENV)/bin/python docs/make_pictures.py

paper: $(STAMP)  ## trains every experiment of the paper, 8 seeds, and those beyond it; goes on where it stopped; for a GPU: DEVICE=cuda
	$(VENV)/bin/egalitarian run --all --final --device $(DEVICE)
	$(VENV)/bin/egalitarian run --beyond --device $(DEVICE)

results: $(STAMP) ## tables, figures and the toy problem from the runs stored in runs/, into results/ (refuses if fewer than are there); never trains
	$(VENV)/bin/egalitarian toy --out results/toy
	$(VENV)/bin/egalitarian report --out results

examples: $(STAMP)  ## runs the examples, shortened
	for file in examples/*.py; do $(VENV)/bin/python $$file --quick || exit 1; done

clean:           ## removes the virtual environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis  # never runs/: they took hours
