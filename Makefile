# Two commands set everything up on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
THREADS ?= 2

.PHONY: demo test test-browser test-integrations check campaign bench docs clean

demo: $(VENV)/installed
	$(BIN)/segcal demo --out demo

# One thread for each worker and what it starts: the workers have the cores already.
test: $(VENV)/installed-dev check
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(THREADS) --dist worksteal -q

# The page in a browser; `make test` runs these tests too where both are there.
test-browser: $(VENV)/installed-dev
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev,browser]"
	@command -v chromium > /dev/null || command -v chromium-browser > /dev/null || { echo "no browser: apt-get install chromium"; exit 1; }
	$(BIN)/python -m pytest -q tests/report/test_browser.py

# The packages that segcal plugs into, in an environment of their own: they are large, and `make test` does without.
INTEGRATIONS := .venv-integrations
test-integrations: $(INTEGRATIONS)/installed
	$(INTEGRATIONS)/bin/python -m pytest -q -p no:cacheprovider tests/integrations tests/data/test_nnunet.py tests/test_strangers.py

$(INTEGRATIONS)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(INTEGRATIONS)
	$(INTEGRATIONS)/bin/python -m pip install --quiet --upgrade pip
	$(INTEGRATIONS)/bin/python -m pip install --quiet --constraint constraints.txt \
		--editable ".[medical,onnx,hf,monai,nnunet,lightning,smp,vision,ray,figures]" beartype hypothesis pytest tensorboard
	touch $@

check: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Attacks: damaged files, foreign files, special files (others each time), kills, full disks, odd machines, changed code.
campaign: $(VENV)/installed-dev
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[campaign,store]"
	$(BIN)/python -m pytest -n $(THREADS) -q tests/campaign --deselect tests/campaign/test_fuzz.py --hypothesis-profile campaign
	$(BIN)/python -m tests.campaign fuzz --number 100000 --seed $$(date +%s)
	$(BIN)/python -m tests.campaign kill --number 500 --seed 1
	$(BIN)/python -m tests.campaign disk --number 100 --seed 1
	$(BIN)/python -m tests.campaign odd-machines
	$(BIN)/mutmut run --max-children $(THREADS)
	$(BIN)/mutmut results

# The site, built strictly: a broken link or an undocumented name is an error.
docs: $(VENV)/installed-dev
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[docs]"
	$(BIN)/mkdocs build --strict --quiet

bench: $(VENV)/installed-dev
	$(BIN)/python -m benchmarks

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/installed: $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[demo]"
	touch $@

$(VENV)/installed-dev: $(VENV)/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev,medical,demo,onnx,parquet]"
	touch $@ $(VENV)/installed

clean:
	rm -rf $(VENV) $(INTEGRATIONS) demo site build dist mutants .pytest_cache .mypy_cache .ruff_cache .hypothesis
