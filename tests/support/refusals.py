"""What is refused, and with which row of the table of errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gateway.core.errors import ErrorCode, Refused


@contextmanager
def refused(code: ErrorCode) -> Iterator[pytest.ExceptionInfo[Refused]]:
    """What is done within is refused with this code."""
    with pytest.raises(Refused) as caught:
        yield caught
    assert caught.value.code is code
