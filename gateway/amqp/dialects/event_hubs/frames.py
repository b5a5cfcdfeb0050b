"""
What the frames of Event Hubs' clients go through: batches are known by their transfers, and what goes out is padded.
"""

from __future__ import annotations

from amqp_ext.event_hubs.event_batch import events_of
from amqp_ext.event_hubs.incoming_frames import IncomingFrames
from amqp_ext.event_hubs.padding import Padder
from gateway.amqp.dialects.hooks import FrameHooks


class EventBatches(IncomingFrames):
    """The batches of one connection."""

    def messages_of(self, content: bytes) -> list[bytes]:
        """
        The events of a batch, in their order.

        Raises:
            CodecError: It is none.
        """
        return events_of(content)


def new_frames(largest_bytes: int) -> FrameHooks:
    """
    The hooks of a new connection.

    Args:
        largest_bytes: The largest frame that is taken.
    """
    batches = EventBatches(largest_bytes)
    return FrameHooks(batches.receive, Padder().pad, batches)
