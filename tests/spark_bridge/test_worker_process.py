"""The process that Spark runs a task in."""

import gc
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

from spark_bridge.stream import settle

pytestmark = pytest.mark.spark


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The main module, to be given a name."""
    module = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)
    settle.cache_clear()
    yield module
    settle.cache_clear()
    gc.unfreeze()


def test_what_a_worker_of_sparks_daemon_has_imported_is_not_looked_at_again(main: ModuleType) -> None:
    """Spark collects garbage after each task: only what came since the first is gone through."""
    main.__spec__ = ModuleSpec("pyspark.daemon", None)
    settle()
    count = gc.get_freeze_count()
    assert count > 0
    later = [[] for _ in range(1_000)]  # type: list[list[object]]
    settle()
    assert gc.get_freeze_count() <= count
    assert any(item is later for item in gc.get_objects())


@pytest.mark.parametrize("spec", [None, ModuleSpec("pytest", None)])
def test_nothing_is_done_to_the_collector_of_a_users_process(
    main: ModuleType, spec: ModuleSpec | None
) -> None:
    """A driver's garbage is its own affair."""
    main.__spec__ = spec
    settle()
    assert gc.get_freeze_count() == 0
