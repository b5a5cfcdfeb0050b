"""
What messages of open transactions take in memory, counted over all connections of the gateway.
"""

from __future__ import annotations


class TransactionBudget:
    """What messages of open transactions take, over all connections."""

    def __init__(self) -> None:
        self.used_bytes = 0

    def use(self, size_bytes: int) -> None:
        """A message waits for its transaction's commit."""
        self.used_bytes += size_bytes

    def free(self, size_bytes: int) -> None:
        """Messages wait no longer."""
        self.used_bytes -= size_bytes
