# The commands of this project. Each sets itself up: a Python 3.11+ and make are all that has to be there.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# With this variable Python keeps no bytecode: each process of a test would compile all modules, half a minute for a worker.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: setup demo demo-cuts demo-tiers picture test test-all coverage night stores mutants check audit bench dist pythons site clean

setup: $(STAMP)  ## make .venv and install everything that development needs

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "stablelog needs Python 3.11 or newer; this is " + sys.version.split()[0] + " (name another one with make PYTHON=...)")'
	@if command -v uv >/dev/null; then \
		test -x $(BIN)/python || uv venv --quiet --python $(PYTHON) $(VENV); \
		uv pip install --quiet --python $(BIN)/python -e '.[dev]'; \
	else \
		test -x $(BIN)/python || $(PYTHON) -m venv $(VENV); \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'; \
	fi
	@touch $(STAMP)

demo: setup  ## a year of flights through the log, with crashes, and the proof that none was lost
	$(BIN)/python -m demo

demo-cuts: setup  ## a transaction is left open: who waits for it, and what Spark sees of the others
	$(BIN)/python -m demo cuts

demo-tiers: setup  ## the flights in two tiers: read across both, by Spark without a broker, and restored after the disk is lost
	$(BIN)/python -m demo tiers

picture: setup  ## draw the pictures of README and docs/start again, from what a broker returns and has in its files
	$(BIN)/python -m demo.pictures

# Two workers for each core: many tests wait for a child process or a client's back-off. A worker that has crashed is not
# replaced: pytest-xdist 3.8 then waits for ever, with --dist loadgroup.
PYTEST := $(BIN)/python -m pytest -q -n auto --dist loadgroup --max-worker-restart=0 --hypothesis-seed=0

test: setup  ## each promise once, in five minutes on two cores
	$(PYTEST) -m "not extended" --minutes-limit 35

test-all: setup  ## all other tests that need nothing but this, in twenty minutes on two cores
	$(PYTEST) -m extended --minutes-limit 150

coverage: setup  ## branch coverage of each room by the tests of make test; a room that decides needs 97 %
	$(PYTEST) -m "not extended" --cov=stablelog --cov-branch --cov-report=
	$(BIN)/python -m tests.room_coverage

night: setup  ## the long runs, each with a seed of its own; SEED=N for the same again, ONLY="kills programs" for some
	$(BIN)/python -m tests.night $(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only $(ONLY))

stores: setup  ## the contract tests of object stores on a real Ceph gateway and on Azurite, where these can be installed
	STABLELOG_STORES=1 $(BIN)/python -m pytest -q -rs tests/env/objects/test_contract.py -k "ceph or azurite"

mutants: setup  ## a mutant for each protocol rule, and the test that has to catch it; ONLY=text for some
	$(BIN)/python -m tests.mutants rules $(if $(ONLY),--only "$(ONLY)")

check: setup  ## style, types, architecture, and ruff's rules for security
	$(BIN)/ruff check .
	$(BIN)/ruff check --preview --select RUF027 src  # a text with {name} that is no f-string
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Not a part of check: it asks PyPI's database of vulnerabilities, which a mirror of packages does not have. A package that
# the database does not know fails the audit.
audit: setup  ## known vulnerabilities of everything that is installed
	$(BIN)/python -m venv $(VENV)/audit
	$(VENV)/audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit
	$(BIN)/python -c 'from importlib.metadata import distributions; print(*sorted({f"{one.name}=={one.version}" for one in distributions() if one.name != "stablelog"}), sep="\n")' > $(VENV)/audit/installed.txt
	$(VENV)/audit/bin/pip-audit --strict --progress-spinner off --no-deps --disable-pip -r $(VENV)/audit/installed.txt

bench: setup  ## figures against Apache Kafka on this machine; AGAINST=COMMIT: which rows became slower since then
	$(BIN)/python -m bench $(if $(AGAINST),--against $(AGAINST))

dist: setup  ## the sdist and the wheel, built twice and checked as a release; dist/ has them
	$(BIN)/python -m tests.dist

pythons: setup  ## the quick tests on each Python from 3.11 to 3.14 that is found here
	$(BIN)/python -m tests.pythons

site: setup  ## the documents as a web site, built and checked; target/site has it
	$(BIN)/python -m tests.site

clean:  ## remove what the commands above made
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis target dist
