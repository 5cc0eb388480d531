"""What several test folders need: the shared real data, a random-weight LLaVA, and a small
benchmark built by the house."""

from __future__ import annotations

import atexit
import gc
import os
from collections import Counter
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import sdgbias.engines  # noqa: F401  before the tests import transformers, and so torchvision
from tests.builders import once as shared_by_workers
from tests.builders.once import synthetic_benchmark
from tests.builders.refusals import Refusal, refusal_of

#: The files that take longest start first, the longest before all others, so that no worker is
#: left alone with one of them at the end; see the table at the end of a run.
LONGEST = ["families", "golden", "readme_tour", "new_releases", "flows", "dvc", "serve"]
LONGEST += ["bad_raw", "own_suite", "language_model", "wheel", "demo"]
#: Tests that drive whole commands belong to the slow tier, but for these.
QUICK = ["commands", "models_lifecycle", "refusals"]
#: Files elsewhere that take five seconds of CPU or more, of what a journey passes through as well,
#: or that import torch, three seconds of each process.
SLOW = {
    "analysis": "baselines paper_fairness",
    "benchmark": "build card items quality quality_defects quality_page release release_predictions"
    " review",
    "engines": "ahead fingerprint head numbers prompting refusals templates text_only zero_shot",
    "nightly": "pages records regression run scenarios",
    "raw": "check images_build",
    "report": "build fairness layout pages wandb_log",
    "scoring": "cost evaluate probes",
    "spec": "backends families gpu_views text_only",
    "store": "tables",
    "vllm": "api engine language_models options",
}

for name, value in {
    "HF_HUB_OFFLINE": "1",
    "WANDB_MODE": "offline",
    "GX_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    "DVC_NO_ANALYTICS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}.items():
    os.environ.setdefault(name, value)

with suppress(ImportError):  # the environment of vLLM has no hypothesis
    from hypothesis import HealthCheck, settings

    # the same examples on every machine, however busy it is
    settings.register_profile(
        "house",
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("house")

# a worker imports torch, prefect and 2,800 tests: a third of that time is the garbage collector
# walking what is there to stay
gc.set_threshold(50_000, 20, 100)
if "PYTEST_XDIST_WORKER" in os.environ:
    # the interpreter's end would take apart what was imported; pytest reports before that
    atexit.register(os._exit, 0)

REPOSITORY = Path(__file__).resolve().parents[1]
SHARED = REPOSITORY.parent / "shared" / "data"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with an empty registry."""
    monkeypatch.delenv("SDGBIAS_REGISTRY", raising=False)
    (tmp_path / "registry" / "models").mkdir(parents=True)
    return tmp_path


@pytest.fixture
def refusal(request: pytest.FixtureRequest, tmp_path: Path) -> Refusal:
    """Compares an error with refusals.yaml beside the test (tests/builders/refusals.py)."""
    return refusal_of(request, tmp_path)


@pytest.fixture(scope="session", autouse=True)
def _kept(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Where builders keep what they make for the other tests of this run."""
    alone = "PYTEST_XDIST_WORKER" not in os.environ
    common = tmp_path_factory.getbasetemp()
    shared_by_workers.KEPT = common if alone else common.parent


@pytest.fixture(scope="session")
def shared() -> Path:
    """Real raw data beside the checkout; it is never committed."""
    if not SHARED.is_dir():
        pytest.skip(f"no shared real data beside the checkout ({SHARED.parent.name}/{SHARED.name})")
    return SHARED


@pytest.fixture(scope="session")
def small_benchmark(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A benchmark of 30 synthetic clusters, 60 MCQs and 20 regression questions."""
    return synthetic_benchmark(tmp_path_factory, "small", 30, 60, 20)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--write-golden", action="store_true", help="write the golden files of the tests that run"
    )


def _name(path: Path) -> str:
    return path.stem.removeprefix("test_")


def _slow(path: Path) -> bool:
    """Whether all tests of a file are of the slow tier."""
    if path.parent.name == "functional":
        return _name(path) not in QUICK
    return _name(path) in SLOW.get(path.parent.name, "").split()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files without a test of the tier that is asked for aren't imported, which takes seconds of
    every worker."""
    if not collection_path.name.startswith("test_"):
        return None
    tier = config.getoption("markexpr").removesuffix(" and not long")
    slow = _slow(collection_path)
    if tier == "slow" and not slow:  # a file may hold a slow test among others
        return "mark.slow" not in collection_path.read_text(encoding="utf-8") or None
    return (tier == "not slow" and slow) or None


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files that take longest first (with --dist loadfile); the slow tier is marked."""
    order = {name: number for number, name in enumerate(LONGEST)}

    def rank(item: pytest.Item) -> tuple[int, bool]:
        return order.get(_name(item.path), len(order)), item.path.parent.name != "functional"

    items.sort(key=rank)  # stable: tests of a file, and files of the same rank, stay in order
    for item in items:
        if _slow(item.path):
            item.add_marker(pytest.mark.slow)


def _cpu() -> float:
    """CPU seconds so far, of this process and of its children that have ended."""
    return sum(os.times()[:4])


_BEFORE = [_cpu()]
_COLLECTED: list[float] = []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, Any, Any]:
    """Adds the CPU seconds since the report before."""
    report = yield
    report.cpu, _BEFORE[0] = _cpu() - _BEFORE[0], _cpu()
    return report


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, Any, Any]:
    """Notes what a worker spent until it had collected its tests, imports included."""
    gc.disable()  # nothing that is imported goes away
    collected = yield
    gc.enable()
    if hasattr(session.config, "workeroutput"):
        gc.freeze()  # pytest collects garbage five times at the end, each time through all of it
        session.config.workeroutput["collected"] = _cpu()
    return collected


@pytest.hookimpl(optionalhook=True)  # of xdist, which the environment of vLLM has not
def pytest_testnodedown(node: Any) -> None:
    _COLLECTED.append(getattr(node, "workeroutput", {}).get("collected", 0.0))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """The 20 files and the 20 tests that took most CPU seconds, their fixtures included."""
    files: Counter[str] = Counter()
    tests: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                used = getattr(report, "cpu", 0.0)  # none from a worker that died
                files[report.nodeid.partition("::")[0]] += used
                tests[report.nodeid] += used
    if len(files) < 20:  # somebody runs the tests of what they change
        return
    terminalreporter.section(f"CPU {sum(files.values()):,.0f} s in {len(files)} files, the dearest")
    for name, seconds in [*files.most_common(20), *tests.most_common(20)]:
        terminalreporter.write_line(f"CPU {seconds:6.1f} s  {name}")
    if _COLLECTED:
        spent = ", ".join(f"{seconds:.1f}" for seconds in _COLLECTED)
        terminalreporter.write_line(f"CPU s until each worker had collected its tests: {spent}")
