PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.installed

.PHONY: tour test test-all bench docs site lint clean

tour: $(READY)   ## verify every claim, draw the quick figures, write out/report.html
	$(BIN)/attnflow report --out out

test: lint       ## everything that gates a change
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not slow"

test-all: lint   ## also the slow tests
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder

bench: $(READY)  ## ratios against the naive implementations, into benchmarks/RESULTS.md
	$(BIN)/python benchmarks/run.py

docs: $(READY)   ## docs/ledger.md and docs/gallery.md with their pictures
	$(BIN)/python docs/build.py

site: $(READY)   ## docs/ as HTML into out/site, offline; pictures are those of `make docs`
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs out/site

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

$(READY): pyproject.toml constraints.txt
	@echo "installing into $(VENV) (about a minute) ..."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[test,docs]"
	@touch $(READY)

clean:
	rm -rf $(VENV) out
