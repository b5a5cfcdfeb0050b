"""
The two sides of a link, as far as the loop over the engine's events knows them.
"""

from __future__ import annotations

from typing import Any, Protocol


class Receiving(Protocol):
    """What the loop over the events needs to know of a link that messages come in on."""

    def receive(self) -> None: ...


class Sending(Protocol):
    """And of one that messages go out on."""

    def updated(self, delivery: Any) -> None: ...

    def report(self) -> None: ...

    def on_flow(self) -> None: ...
