"""
Names that the clients of Event Hubs say on connections and links.

Source: the clients of Azure Event Hubs; Microsoft, "Event Hubs: epoch receivers" (archived blog).
"""

from typing import Final

CBS_MECHANISM: Final = "MSSBCBS"
"""The SASL mechanism of a client that will say by a token at ``$cbs`` who it is; until then it has said no more
than by ANONYMOUS."""

EPOCH: Final = "com.microsoft:epoch"
"""A receiver's owner level, a whole number: of two receivers the one with the higher level has the partition."""
