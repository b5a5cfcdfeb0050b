"""Assertions about refusals by their row in the table of errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gateway.core.errors import ErrorCode, Refused


@contextmanager
def refused(code: ErrorCode) -> Iterator[pytest.ExceptionInfo[Refused]]:
    """Asserts that the block raises ``Refused`` with this error code."""
    with pytest.raises(Refused) as caught:
        yield caught
    assert caught.value.code is code
