# Everything happens in a virtual environment inside this folder, made from nothing but Python 3.11 or newer, a C
# compiler and make. `make PYTHON=python3.12 test` uses another Python and keeps its environment beside the first.

PYTHON ?= python3
ifeq ($(PYTHON),python3)
VENV := .venv
else
VENV := .venv-$(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2] + sys.abiflags)')
endif
BIN := $(VENV)/bin
PY := $(BIN)/python

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export LEVADA_BUILD_EXT := yes

PLAYED := openai_chat.sse openai_responses.sse anthropic-tools.sse gemini.json vertex_search.json
JOBS ?= 2   # processes that run tests

CHECKED := $(wildcard src tests benchmarks examples)

.DEFAULT_GOAL := help
.PHONY: help demo test page load replicas cuts crash livelog bench fuzz lint wheel clean setup

help:             ## show this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/make \1	\2/p' Makefile

# A stamp stands for a step that was done; touching what it depends on does the step again.
$(VENV)/venv.stamp:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "levada needs Python 3.11 or newer; say PYTHON=…")'
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --upgrade 'pip>=25.1'   # the first that reads dependency groups
	touch $@

$(VENV)/levada.stamp: $(VENV)/venv.stamp pyproject.toml setup.py $(wildcard ext/*.pyx ext/*.pxd ext/*.h)
	$(PY) -m pip install --quiet --group build --group test --group lint
	$(PY) -m pip install --quiet --no-build-isolation --editable '.[cli,gateway]'
	touch $@

# The rivals of the benchmarks, which the tests compare with too.
$(VENV)/bench.stamp: $(VENV)/levada.stamp
	$(PY) -m pip install --quiet --group bench
	touch $@

setup: $(VENV)/levada.stamp

demo: $(VENV)/bench.stamp   ## show levada at work: streams played, judged, and how fast they are read
	@echo; echo "# A stream of each dialect as a person would see it, in 7-byte chunks"
	@for name in $(PLAYED); do echo; echo "\$$ levada play --speed 100 --chunk 7 tests/fixtures/$$name"; \
	    $(BIN)/levada play --speed 100 --chunk 7 tests/fixtures/$$name || exit; done
	@echo; echo "# What each stream amounts to: one was cut off, two were ended by an error"
	-$(BIN)/levada check tests/fixtures/*.sse tests/fixtures/*.json
	@echo; echo "# The layer below: the events of a stream"
	$(BIN)/levada events --chunk 7 tests/fixtures/anthropic-error.sse
	@echo; echo "# Only what its provider finished is kept and acted upon: these streams and a ledger"
	@rm -f $(VENV)/demo.db*
	@LEDGER_URL=sqlite:///$(VENV)/demo.db $(PY) examples/keep_recorded.py tests/fixtures/*.sse tests/fixtures/*.json
	$(BIN)/levada ledger list --url sqlite:///$(VENV)/demo.db
	@echo; echo "# How fast: ratios from one interleaved run"
	$(PY) -m benchmarks --quick
	@echo; echo "# The gateway and its page: DEMO_SERVE=1 make demo, or"
	@echo "#     $(BIN)/levada serve --demo     and then http://127.0.0.1:8000/ in a browser"
	@if [ -n "$(DEMO_SERVE)" ]; then exec $(BIN)/levada serve --demo; fi

test: lint $(VENV)/bench.stamp   ## rebuild the extension if need be, lint, and test both backends
	LEVADA_BACKEND=python $(PY) -m pytest -n $(JOBS) tests/turn tests/dialects
	$(PY) -m pytest -n $(JOBS) --dist loadgroup -m "not long"

page: $(VENV)/levada.stamp   ## the page in a real Chromium
	$(PY) -m pytest -n $(JOBS) --dist loadgroup tests/live/test_page.py tests/live/test_page_live.py

load: $(VENV)/levada.stamp   ## 200 paced streams at once through the gateway
	LEVADA_LOAD=200 $(PY) -m pytest -s tests/live/test_load.py

replicas: $(VENV)/levada.stamp   ## 200 turns at once through two gateways over one Redis, while things die
	LEVADA_REPLICAS=200 $(PY) -m pytest -s tests/live/test_replicas.py

cuts: $(VENV)/bench.stamp   ## cut every recording off at every byte, and cut it in two everywhere (long)
	LEVADA_CUTS=all $(PY) -m pytest -n $(JOBS) tests/turn/test_recordings.py

crash: $(VENV)/levada.stamp   ## kill a process at every step from a turn's first byte to its last action (long)
	LEVADA_CRASHES=200 $(PY) -m pytest -s tests/ledger/test_crash.py

livelog: $(VENV)/levada.stamp   ## live turns: every random test 50 times (long)
	LEVADA_LIVELOG=long LEVADA_REQUIRE=redis $(PY) -m pytest -n $(JOBS) tests/livelog

lint: $(VENV)/levada.stamp   ## ruff, ruff format and mypy --strict
	$(PY) -m ruff check
	$(PY) -m ruff format --check
	$(PY) -m mypy $(CHECKED)

bench: $(VENV)/bench.stamp   ## the table of ratios against other libraries
	$(PY) -m benchmarks
	$(PY) -m benchmarks.live

fuzz: $(VENV)/levada.stamp   ## sanitizers and differential fuzzing
	$(PY) tests/fuzz/run.py

wheel: $(VENV)/levada.stamp   ## sdist and wheel into dist/, the wheel built from the sdist
	$(PY) -m build --no-isolation

clean:            ## remove all that make and the tools made, the environments too
	rm -rf .venv .venv-* build dist wheelhouse src/*.egg-info src/levada/*.so ext/*.c
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
	find src tests $(wildcard benchmarks) -name __pycache__ -type d -exec rm -rf {} +
