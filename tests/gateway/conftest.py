"""What all tests of the gateway share: no log lines on the terminal, and cleanup of what a test opened."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import structlog

from tests.support.identity import ScriptedProvider
from tests.support.waiting import Clock


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    yield
    structlog.reset_defaults()


@pytest.fixture
def _ending() -> Iterator[ExitStack]:
    """Contexts that are closed when the test ends, the last one first."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def clock() -> Clock:
    """A clock in seconds that only the test advances."""
    return Clock()


@pytest.fixture
def provider() -> Iterator[ScriptedProvider]:
    """An identity provider on this machine, which answers as a test wants."""
    with ScriptedProvider() as provider:
        yield provider
