# Two commands do everything: `make demo` and `make test`. Both set up .venv first; afterwards they work offline.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# uv and poetry do not see the CPU build of torch, and an open range would fetch gigabytes: pip, and exact versions.
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1
KINDS := balanced naive star dfs selection-inference language

.PHONY: demo test test-long lint gallery benchmark clean

$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "pathmerge needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet torch==2.13.0
	$(BIN)/pip install --quiet --editable '.[dev]'
	touch $@

demo: $(VENV)/ready
	mkdir -p demo
	@for kind in $(KINDS); do \
	  echo; echo "== $$kind"; \
	  $(BIN)/pathmerge sample $$kind --input-size 64 --count 4000 --seed 1 --show 2 --stats \
	    --out demo/$$kind.npz --picture demo/$$kind.png || exit 1; \
	done
	@echo; echo "== the first file, judged by the slow oracle and drawn again from its key"
	$(BIN)/pathmerge verify demo/balanced.npz
	@echo; echo "Pictures to look at: demo/*.png (6 files). Problems: demo/*.npz. Next: README.md, docs/tutorial.md."

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

clean:
	rm -rf $(VENV) demo build src/*.egg-info .pytest_cache .ruff_cache .hypothesis
