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
"""The time-out of one state machine: it runs thousands of examples in one test, and the machine may be busy."""

SPARK_FOLDERS = ("spark_bridge", "store/archive")
"""Folders whose tests need the extra ``spark``."""

SPARK_SECONDS = 300
"""The time-out of a Spark test: the first one waits for Spark's start, while other tests start, too."""

SPARK_TESTS = {Path(__file__).parent / name for name in SPARK_FOLDERS}
SPARK_RUN = SPARK_TESTS | {Path(__file__).parent / "docs"}
"""Folders with tests that may be marked ``spark``: tox runs those tests (pyproject.toml)."""

HAS_SPARK = find_spec("pyspark") is not None

CONSOLE_TESTS = Path(__file__).parent / "console"
"""Tests that need a browser and Playwright."""

HAS_PLAYWRIGHT = find_spec("playwright") is not None

MEMORY = Path("/dev/shm")
MEMORY_BYTES = 2 * 2**30
"""Free memory that is required there; with less, the tests' folders are on the disk: some tests write 100s of MB."""


# No deadline: on a busy machine any single example may be slow. Fixtures may serve all examples of a test.
settings.register_profile(
    "all",
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    print_blob=True,
)
settings.register_profile("dev", settings.get_profile("all"), max_examples=50)
# The same examples every time, so that no change fails for an older error; nightly runs try new examples.
settings.register_profile("ci", settings.get_profile("all"), max_examples=100, derandomize=True)
settings.register_profile("nightly", settings.get_profile("all"), max_examples=5_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev"))

collect_ignore = [*([] if HAS_SPARK else SPARK_FOLDERS), *([] if HAS_PLAYWRIGHT else ["console"])]


GC_THRESHOLDS = (10_000, 50, 100)
"""Python's garbage collection, about as rare as in a gateway: with thousands of tests in memory, collections at
Python's own pace take a fifth of the time."""


def pytest_configure() -> None:
    """
    Makes garbage collections rarer, and puts the tests' folders into memory if there is enough of it.

    Most of the time of a store's test is waiting for the disk. What a killed process has written survives in memory as
    on a disk: no test cuts the power.
    """
    gc.set_threshold(*GC_THRESHOLDS)
    if MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= MEMORY_BYTES:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


def pytest_report_header() -> list[str]:
    """Says where the folders are, and whether tests are left out, which would otherwise look like a pass."""
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
    """PostgreSQL for all tests of one process. If it is not installed, these tests fail and say what to do."""
    with server() as found:
        yield found


@cache
def _folders(file: Path) -> frozenset[Path]:
    """The folders that contain a file. Cached: it is called for thousands of tests in hundreds of files."""
    return frozenset(file.parents)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """
    Marks all tests of SPARK_FOLDERS ``spark`` and those of the console ``console`` before -m selects by marker, and
    gives long tests more time.

    It puts the long tests first, so that neither of two workers waits for the other's last file.
    """
    is_nightly = settings.get_current_profile_name() == "nightly"
    for item in items:
        if item.get_closest_marker("spark") and not SPARK_RUN.intersection(_folders(item.path)):
            raise pytest.UsageError(f"{item.nodeid}: tox looks for tests of Spark in {SPARK_RUN}")
        if CONSOLE_TESTS in _folders(item.path):
            item.add_marker(pytest.mark.console)
        if SPARK_TESTS.intersection(_folders(item.path)):
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.timeout(SPARK_SECONDS))  # a test's own time-out has precedence
        if is_nightly:
            item.add_marker(pytest.mark.timeout(0))  # none: the number of examples takes hours
        elif is_state_machine(item):
            item.add_marker(pytest.mark.timeout(STATE_MACHINE_SECONDS))
    items.sort(key=lambda item: not LONG.intersection(_folders(item.path)))


def is_state_machine(item: pytest.Item) -> bool:
    """Whether a test is a state machine: Hypothesis makes them unittest test cases, and we have no others."""
    return isinstance(item, pytest.Function) and item.cls is not None and issubclass(item.cls, TestCase)
