"""Settings for all tests: Hypothesis profiles, and what to leave out where Spark is not installed.

``HYPOTHESIS_PROFILE`` chooses a profile; without it, ``ci`` where CI is set and ``dev`` elsewhere.
"""

import gc
import os
import shutil
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from unittest import TestCase

import pytest
from hypothesis import HealthCheck, settings

from tests.support.postgresql import Server, server

LONG = {Path(__file__).parent / name for name in ("docs", "fuzz", "gateway/core", "package", "system")}
"""Folders whose files take longest: state machines, gateways that are started and killed, packages that are built."""

STATE_MACHINE_SECONDS = 1_200
"""How long one may take: it is thousands of examples in one test, and the machine may have other work."""

SPARK_FOLDERS = ("spark_bridge", "store/archive")
"""Folders whose tests need what comes with the extra ``spark``."""

SPARK_SECONDS = 300
"""How long one of them may take: the first waits for Spark to start, beside whatever else starts at that time."""

SPARK_TESTS = {Path(__file__).parent / name for name in SPARK_FOLDERS}
SPARK_RUN = SPARK_TESTS | {Path(__file__).parent / "docs"}
"""Where tests may be marked ``spark``: tox runs those of these folders (pyproject.toml)."""

HAS_SPARK = find_spec("pyspark") is not None

CONSOLE_TESTS = Path(__file__).parent / "console"
"""Tests that need a browser, and what steers it."""

HAS_PLAYWRIGHT = find_spec("playwright") is not None

MEMORY = Path("/dev/shm")
MEMORY_BYTES = 2 * 2**30
"""What must be free there, or the tests' folders lie on the disk: some tests write hundreds of megabytes."""


# A machine shared with other work makes any one example slow now and then: no deadline anywhere. Nor is it a mistake
# to have a fixture once for all examples.
settings.register_profile(
    "all",
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    print_blob=True,
)
settings.register_profile("dev", settings.get_profile("all"), max_examples=50)
# The same examples every time: a change is not held up by what it did not cause. New ones are nightly's work.
settings.register_profile("ci", settings.get_profile("all"), max_examples=100, derandomize=True)
settings.register_profile("nightly", settings.get_profile("all"), max_examples=5_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev"))

collect_ignore = [*([] if HAS_SPARK else SPARK_FOLDERS), *([] if HAS_PLAYWRIGHT else ["console"])]


GC_THRESHOLDS = (10_000, 50, 100)
"""How often Python looks for circles of objects that nobody needs, about as a gateway has it: thousands of tests in
memory are much to go through, which at Python's own pace takes a fifth of the time."""


def pytest_configure() -> None:
    """
    Has Python collect circles less often, and puts the tests' folders into memory, where there is enough of it.

    Most of a store's test is waiting for the disk. What a killed process has written is there all the same, in memory
    as on a disk: no test takes the power away.
    """
    gc.set_threshold(*GC_THRESHOLDS)
    if MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= MEMORY_BYTES:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


def pytest_report_header() -> list[str]:
    """Says where folders lie, and so when tests are left out, which would otherwise look like a pass."""
    where = os.environ.get("PYTEST_DEBUG_TEMPROOT")
    no_spark = f"no pyspark here: of tests, {', '.join(SPARK_FOLDERS)} are left out"
    no_browser = "no playwright here: of tests, console is left out"
    return [
        *[f"folders of tests: in {where}"] * bool(where),
        *[no_spark] * (not HAS_SPARK),
        *[no_browser] * (not HAS_PLAYWRIGHT),
    ]


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Server]:
    """PostgreSQL for all tests of one process. Where it is not installed they fail, and say what to do."""
    with server() as found:
        yield found


@cache
def _folders(file: Path) -> frozenset[Path]:
    """Those that a file lies in; asked for each of thousands of tests, which lie in hundreds of files."""
    return frozenset(file.parents)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """
    Marks all tests of SPARK_FOLDERS ``spark``, those of the console ``console``, before -m selects by marker, and gives
    those time that take long.

    Puts the long ones first: of two workers none shall wait for the other's last file.
    """
    is_nightly = settings.get_current_profile_name() == "nightly"
    for item in items:
        if item.get_closest_marker("spark") and not SPARK_RUN.intersection(_folders(item.path)):
            raise pytest.UsageError(f"{item.nodeid}: tox looks for tests of Spark in {SPARK_RUN}")
        if CONSOLE_TESTS in _folders(item.path):
            item.add_marker(pytest.mark.console)
        if SPARK_TESTS.intersection(_folders(item.path)):
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.timeout(SPARK_SECONDS))  # one of the test's own goes before
        if is_nightly:
            item.add_marker(pytest.mark.timeout(0))  # none: examples are as many as take hours
        elif is_state_machine(item):
            item.add_marker(pytest.mark.timeout(STATE_MACHINE_SECONDS))
    items.sort(key=lambda item: not LONG.intersection(_folders(item.path)))


def is_state_machine(item: pytest.Item) -> bool:
    """Hypothesis makes a test case of unittest's of it; we have no others."""
    return isinstance(item, pytest.Function) and item.cls is not None and issubclass(item.cls, TestCase)
