# make demo: a whole deploy on a simulated Spark; needs only Python 3.11 or newer
# make test: lint and the quick tests, in a few minutes; needs neither ssh nor Docker
# make test-ci: also a few tests of each real program (ssh, Docker, registry, browser, simulated Sparks ...), as CI does after `make lint`
# make test-all: every test that this machine can run, most of an hour; part of a release
# make test-engine: predictions and log reading against a real vLLM on this CPU (minutes; 4 GB in .engine/);
#            VERSION=0.19.1 tests another release
# make engine-release VERSION=0.33.0: adds a release of vLLM, and prints what changed since the one before; ENGINE=sglang VERSION=0.5.23
#            and ENGINE=llama_cpp VERSION=2026.10.11549 (of xllamacpp) add the options of those engines
# make bed:  two simulated Sparks over real ssh (needs root and Docker); `make bed-down` removes them

PYTHON ?= python3
BIN = .venv/bin
# more workers than cores, because most tests spend most of their time waiting
WORKERS ?= 4
# one more where real programs are tested: the tests that share the Docker Engine run on one worker, those of the simulated Sparks on another
ALL_WORKERS ?= $(shell expr $(WORKERS) + 1)

.PHONY: demo test test-quick test-ci test-all test-engine engine-release test-faults molecule lint lint-types lint-rest audit runtime-lock release dist site release-lock bed bed-down docs picture bench clean

.venv/.installed: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed, this is " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

# some machines have no build of the real llama-server; its tests are skipped there
LLAMA = tests/real_llama/requirements.txt

.venv/.installed-test: .venv/.installed $(LLAMA)
	$(BIN)/python -m pip install --quiet --group test --group lint
	$(BIN)/python -m pip install --quiet --no-deps --require-hashes --only-binary :all: --requirement $(LLAMA) || \
	  echo "no llama-server for this machine: its tests will be skipped"
	touch $@

demo: .venv/.installed
	$(BIN)/invoke deploy --host sandbox

# tests/conftest.py lists the tests that `make test` leaves out (SLOW, CI_ONLY), and those of them that CI runs (CI_PARTS)
test test-ci: export SPARKWRIGHT_FUZZ ?= 40
# the types are checked beside the tests, which wait for each other
test: .venv/.installed-test lint-rest
	@$(MAKE) --no-print-directory --jobs 2 lint-types test-quick

test-quick: .venv/.installed-test
	$(BIN)/pytest -n $(WORKERS) -m 'not engine and not slow'

test-ci: .venv/.installed-test
	$(BIN)/pytest -n $(ALL_WORKERS) --durations=25 -m 'not engine and (not slow or ci)'

test-all: .venv/.installed-test lint
	$(BIN)/pytest -n $(ALL_WORKERS) --durations=40 -m 'not engine'

test-engine: .venv/.installed-test
	$(if $(VERSION),SPARKWRIGHT_ENGINE_VERSION=$(VERSION)) $(if $(STARTS),SPARKWRIGHT_ENGINE_STARTS=$(STARTS)) \
	  $(BIN)/pytest -m engine -v --tb=short -p no:xdist tests/real_engine

engine-release: .venv/.installed-test
	$(BIN)/python -m $(if $(filter-out vllm,$(ENGINE)),tests.engine_options.take_in $(ENGINE),tests.real_engine.releases.take_in) $(VERSION)

# some minutes: every fault at every step of a swap, with a table of the server that runs afterwards; every fault, with what each
# command prints (`python -m tests.e2e.states --print` regenerates that table); then ten thousand damaged
# examples of each kind of untrusted input
test-faults: .venv/.installed-test
	SPARKWRIGHT_FAULTS=all $(BIN)/pytest tests/faults tests/e2e/test_states.py -q -n $(WORKERS)
	SPARKWRIGHT_FAULTS=all $(BIN)/pytest tests/bed/test_cluster_faults.py -q
	SPARKWRIGHT_FUZZ=10000 $(BIN)/pytest tests/fuzz -q -n $(WORKERS)

# a separate environment, because Molecule brings Ansible, and may be installed while tests run in .venv
.molecule/.installed: pyproject.toml
	$(PYTHON) -m venv .molecule
	.molecule/bin/python -m pip install --quiet --upgrade pip
	.molecule/bin/python -m pip install --quiet --group molecule
	touch $@

# Molecule on simulated Sparks, with Ansible's own test of idempotence; SCENARIO=default runs only that scenario
molecule: .venv/.installed .molecule/.installed
	PATH="$(CURDIR)/.molecule/bin:$$PATH" molecule test $(if $(SCENARIO),--scenario-name $(SCENARIO),--all)

# the types beside all the rest, which together takes half as long
lint: .venv/.installed-test
	@$(MAKE) --no-print-directory --jobs 2 lint-types lint-rest

lint-types: .venv/.installed-test
	$(BIN)/mypy

lint-rest: .venv/.installed-test
	$(BIN)/ruff check src tests molecule benchmarks tools tasks.py
	$(BIN)/ruff format --check src tests molecule benchmarks tools tasks.py
	$(BIN)/lint-imports
	$(BIN)/python tools/words.py
	$(BIN)/python tools/voice.py
	$(BIN)/python tools/lazy_imports.py

# update the hashes of the wheels that are shipped to hosts, for each processor and Python, after a version was changed in
# src/sparkwright/remote/runtime-requirements.txt
runtime-lock: .venv/.installed
	$(BIN)/python tools/lock_runtime.py

# the same for release-requirements.txt: the packages with which `make release` builds and tests
release-lock: .venv/.installed
	$(BIN)/python tools/lock_release.py

# all tests, then the files to publish
release: test-all dist

# sdist, wheel, SBOM and hashes in dist/, built twice with only the locked versions (tools/release.py); the quick tests then run with these versions
dist: site
	rm -rf dist .release
	$(PYTHON) -m venv .release
	.release/bin/python -m pip download --quiet --only-binary :all: --no-deps --require-hashes --requirement release-requirements.txt --dest .release/wheels
	.release/bin/python -m pip install --quiet --no-index --find-links .release/wheels --no-deps --require-hashes --requirement release-requirements.txt
	.release/bin/python tools/release.py
	.site/bin/twine check --strict dist/*.whl dist/*.tar.gz
	.release/bin/python -m pip install --quiet --no-deps --no-index dist/*.whl
	.release/bin/pytest -n $(WORKERS) -m 'not engine and not slow' $(TESTS)

.site/.installed: pyproject.toml
	$(PYTHON) -m venv .site
	.site/bin/python -m pip install --quiet --upgrade pip
	.site/bin/python -m pip install --quiet --group docs
	touch $@

# the documentation in site/, which works from the disk; a dead link, or a page that is missing from the index, is an error
site: .site/.installed
	NO_MKDOCS_2_WARNING=1 .site/bin/mkdocs build --strict --quiet

# known vulnerabilities in this environment and in the hosts' runtime
audit: .venv/.installed-test
	$(BIN)/python tools/audit.py

bed: .venv/.installed
	$(BIN)/python molecule/bed/bed.py up --hosts 2

bed-down:
	$(PYTHON) molecule/bed/bed.py down

docs: .venv/.installed
	$(BIN)/python docs/generate.py
	$(BIN)/python -m tests.docs.traps

# docs/deploy.svg, from a real deploy in a terminal; run it when the output of a deploy has changed
picture: .venv/.installed
	$(BIN)/python -m tools.picture

# time a deploy without changes to the bed (`make bed`)
bench: .venv/.installed-test
	$(BIN)/python -m benchmarks.noop_over_ssh

# bench-fleet, bench-health, bench-logs, bench-models, bench-restart, bench-status ...: docs/benchmarks.md
bench-%: .venv/.installed-test
	$(BIN)/python -m benchmarks.$*

clean:
	rm -rf .venv .molecule .release .site site dist
