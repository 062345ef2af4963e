# egalitarian: `make` lists the targets. The first one that you run installs everything into .venv.
PYTHON ?= python3
VENV := .venv
DEVICE ?= cpu
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check -q
STAMP := $(VENV)/.installed
HOSTS := .venv-hosts
BROWSER := .venv-browser
CLUSTER := .venv-cluster
DIST := .venv-dist

.PHONY: help grok test test-hosts test-browser test-cluster test-slow lint types imports api docs bench peers noise figure examples paper results dist clean

help:            ## this list
	@grep -hE '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## /make \1|/' | column -t -s '|'

# Everything is installed once; a changed pyproject.toml or constraints.txt installs again.
$(STAMP): pyproject.toml constraints.txt
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install -c constraints.txt torch
	$(PIP) install -c constraints.txt -e '.[dev]'
	@touch $(STAMP)

grok: $(STAMP)   ## watch networks grok: live curves, a table, a picture (about a minute, after a minute of installation)
	$(VENV)/bin/egalitarian grok

test: $(STAMP)   ## the default tests (about six minutes on two cores)
	$(VENV)/bin/python -m pytest -q -n 2 --dist worksteal

$(HOSTS)/.installed: pyproject.toml constraints.txt constraints-hosts.txt
	test -x $(HOSTS)/bin/python || $(PYTHON) -m venv $(HOSTS)
	$(HOSTS)/bin/python -m pip --disable-pip-version-check -q install -c constraints.txt torch
	$(HOSTS)/bin/python -m pip --disable-pip-version-check -q install -c constraints.txt -c constraints-hosts.txt -e '.[hosts]'
	@touch $@

test-hosts: $(HOSTS)/.installed  ## tests with real trainers, model zoos and other optimizers, in an environment of their own
	$(HOSTS)/bin/python -m pytest -q -n 2 --dist worksteal tests/hosts

$(BROWSER)/.installed: pyproject.toml constraints.txt constraints-browser.txt
	test -x $(BROWSER)/bin/python || $(PYTHON) -m venv $(BROWSER)
	$(BROWSER)/bin/python -m pip --disable-pip-version-check -q install -c constraints.txt torch
	$(BROWSER)/bin/python -m pip --disable-pip-version-check -q install -c constraints.txt -c constraints-browser.txt -e '.[browser]'
	@touch $@

test-browser: $(BROWSER)/.installed  ## tests of pages in a real browser; installs Debian's Chromium if there is none
	tests/browser/chromium
	$(BROWSER)/bin/python -m pytest -q tests/browser

$(CLUSTER)/.installed: pyproject.toml constraints.txt constraints-cluster.txt
	test -x $(CLUSTER)/bin/python || $(PYTHON) -m venv $(CLUSTER)
	$(CLUSTER)/bin/python -m pip --disable-pip-version-check -q install -c constraints.txt torch
	$(CLUSTER)/bin/python -m pip --disable-pip-version-check -q install -c constraints.txt -c constraints-cluster.txt -e '.[cluster]'
	@touch $@

test-cluster: $(CLUSTER)/.installed  ## tests of several processes, and on real clusters: Ray, and Debian's Slurm, which is installed if there is none
	tests/cluster/slurm
	OMP_NUM_THREADS=1 $(CLUSTER)/bin/python -m pytest -q tests/distributed tests/cluster

test-slow: $(STAMP)  ## the slow tests: torch.compile, training
	$(VENV)/bin/python -m pytest -q -m slow

lint: $(STAMP)   ## ruff: lint and format
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

types: $(STAMP)  ## mypy, strict
	$(VENV)/bin/mypy

imports: $(STAMP)  ## the import contracts between rooms
	$(VENV)/bin/lint-imports --no-logo

api: $(STAMP)    ## write docs/api.md from signatures and docstrings
	$(VENV)/bin/python docs/make_api.py

docs: $(BROWSER)/.installed  ## build the documentation site, into site/
	$(BROWSER)/bin/python docs/make_site.py

bench: $(STAMP)  ## measure what EGD costs here, into bench/ (15 minutes on a CPU)
	$(VENV)/bin/egalitarian bench --device $(DEVICE)
	$(VENV)/bin/python benchmarks/lab.py

peers: $(STAMP)  ## unpack other packages into scratch/peers, for `egalitarian bench train` where nothing can be installed
	$(PIP) install --no-deps --upgrade --target scratch/peers pytorch_optimizer==4.1.0 heavyball==3.2.1 \
		gram-newton-schulz==0.1.6 muon-optimizer==0.1.0 opt_einsum==3.4.0

noise: $(STAMP)  ## measure the rounding noise of gradients, by precision
	$(VENV)/bin/python benchmarks/noise.py

figure: $(STAMP) ## draw the README's picture and animation; trains nothing
	$(VENV)/bin/python docs/make_pictures.py
	$(VENV)/bin/python docs/make_animation.py --draw

paper: $(STAMP)  ## train everything, 8 seeds, into runs/ and results/evidence; days on a CPU, so set DEVICE=cuda
	$(VENV)/bin/egalitarian run --all --final --device $(DEVICE)
	$(VENV)/bin/egalitarian run --beyond --device $(DEVICE)
	$(VENV)/bin/egalitarian pack

results: $(STAMP) ## write results/ from runs/ or, without it, results/evidence; trains nothing
	@test -d "$${EGALITARIAN_RUNS:-runs}" || { test -z "$$EGALITARIAN_RUNS" && ls results/evidence/*.xz > /dev/null 2>&1; } || \
		{ echo "make results: no stored runs and no evidence, so results/ stays as it is; make paper trains" >&2; exit 1; }
	$(VENV)/bin/egalitarian toy --out results/toy
	$(VENV)/bin/egalitarian report --out results --html

examples: $(STAMP)  ## run the examples, shortened
	for file in examples/*.py; do $(VENV)/bin/python $$file --quick || exit 1; done

dist:            ## build wheel and sdist into dist/, check them, and try them in clean environments (three minutes)
	test -x $(DIST)/bin/python || $(PYTHON) -m venv $(DIST)
	$(DIST)/bin/python -m pip --disable-pip-version-check -q install build==1.6.1 twine==7.0.0
	rm -rf dist
	$(DIST)/bin/python -m build --outdir dist .
	$(DIST)/bin/twine check --strict dist/*
	$(DIST)/bin/python tests/contracts/packages.py dist

clean:           ## remove the virtual environment and caches
	rm -rf $(VENV) $(HOSTS) $(BROWSER) $(CLUSTER) $(DIST) dist site build/pages .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis  # never runs/: they took hours
