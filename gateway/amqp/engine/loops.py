"""
The choice between the loops in C and those in Python, made once in a process.

The loops in C (``native_loops``) run where they were built. ``REWIND_NATIVE=0`` in the environment chooses those in
Python. With ``REWIND_NATIVE=1`` the process does not start without those in C.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from proton import Transport

from amqp_ext.message.annotations import Splicer
from gateway.amqp.engine import python_loops
from gateway.core.model import Row

VARIABLE: Final = "REWIND_NATIVE"


class Loops(Protocol):
    """The functions that both have; ``python_loops`` says what each does."""

    def handle_of(self, structure: Any, /) -> Any: ...
    def delivery_at(self, handle: Any, /) -> Any: ...
    def top(self, collector: Any, /) -> tuple[int, Any] | None: ...
    def skip(self, collector: Any, kind: int, link: Any, /) -> None: ...
    def drop(self, collector: Any, /) -> None: ...
    def delivery_on_top(self, collector: Any, /) -> Any: ...
    def take_messages(
        self, link: Any, max_bytes: int, is_batch: Callable[[bytes], bool] | None, /
    ) -> tuple[list[bytes], list[Any] | None, int]: ...
    def discard(self, link: Any, /) -> None: ...
    def settle(self, deliveries: Sequence[Any], outcome: int, /) -> None: ...
    def send(
        self,
        link: Any,
        rows: Sequence[Row],
        splicer: Splicer,
        attempts: Mapping[int, int],
        end_id: int | None,
        unsettled: dict[Any, int] | None,
        /,
    ) -> int: ...
    def send_batch(
        self,
        link: Any,
        rows: Sequence[Row],
        splicer: Splicer,
        attempts: Mapping[int, int],
        end_id: int | None,
        /,
    ) -> None: ...
    def take_outcomes(
        self, collector: Any, unsettled: dict[Any, int], accepted: list[int], confirm: list[Any], /
    ) -> int: ...
    def pull(self, transport: Any, /) -> bytes | bytearray: ...
    def plain_frames(
        self, data: bytes, position: int, begun: set[int], continued: set[int], next_ids: dict[int, int], /
    ) -> int: ...


class Chosen(NamedTuple):
    """The loops that run."""

    loops: Loops
    name: str
    """``native`` or ``python``."""
    why: str
    """Why they are the loops in Python; empty for those in C."""

    def __str__(self) -> str:
        return f"{self.name} ({self.why})" if self.why else self.name


def choose(setting: str | None) -> Chosen:
    """
    Args:
        setting: What the environment says.

    Raises:
        ImportError: The loops in C are not there, and the environment requires them.
    """
    if setting == "0":
        return Chosen(python_loops, "python", f"{VARIABLE}=0")
    try:
        from gateway.amqp.engine import native_loops  # noqa: PLC0415
    except ImportError as error:
        if setting == "1":
            raise
        return Chosen(python_loops, "python", f"slower than native: {error}")
    return Chosen(native_loops, "native", "")


CHOSEN: Final = choose(os.environ.get(VARIABLE))
LOOPS: Final = CHOSEN.loops


def pull(transport: Transport) -> bytes | bytearray:
    """The present output of the engine, some 256 KB of it; empty when there is none, or it is closed."""
    return LOOPS.pull(LOOPS.handle_of(transport._impl))
