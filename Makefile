# Two commands do everything: `make demo` and `make test`. Both set up .venv first; afterwards they work offline.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# uv and poetry do not see the CPU build of torch, and an open range would fetch gigabytes: pip, and exact versions.
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

.PHONY: demo test test-long lint gallery benchmark clean

$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "pathmerge needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet torch==2.13.0
	$(BIN)/pip install --quiet --editable '.[dev]'
	$(BIN)/pathmerge compile
	touch $@

demo: $(VENV)/ready
	mkdir -p demo
	@echo "== problems: what the model will have to solve"
	$(BIN)/pathmerge sample balanced --input-size 32 --count 4000 --seed 1 --show 2 --stats \
	  --out demo/balanced.npz --picture demo/problems.png
	$(BIN)/pathmerge verify demo/balanced.npz
	@echo; echo "== a model that learns to search, one that does not, and what the first one computes"
	$(BIN)/pathmerge demo --out demo
	@echo; echo "To look at, in a browser: $(CURDIR)/demo/report.html. Next: README.md, docs/tutorial.md."

lint: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

test: lint
	$(BIN)/pytest -n 2 --dist worksteal -m 'not long'

test-long: $(VENV)/ready
	$(BIN)/pytest -n 2 --dist worksteal

gallery: $(VENV)/ready
	$(BIN)/pathmerge gallery docs

benchmark: $(VENV)/ready
	$(BIN)/python benchmarks/generators.py
	$(BIN)/python benchmarks/training.py
	$(BIN)/python benchmarks/circuits.py

clean:
	rm -rf $(VENV) demo build src/*.egg-info .pytest_cache .ruff_cache .hypothesis
