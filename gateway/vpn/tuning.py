"""
The numbers that a Message VPN's work is portioned by.

They are no settings: nobody who runs a gateway has to know them. A test gives smaller ones, so that few messages are
many.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.core.endpoint.endpoint import FLOW_QUANTUM


@dataclass(frozen=True, slots=True)
class Tuning:
    """Each with its unit, its default, and why it is that."""

    flow_quantum: int = FLOW_QUANTUM
    """Messages a consumer is given before the next one's turn: large enough that batches stay batches, small enough
    that two consumers share a burst."""

    endpoint_turn_rows: int = 1_024
    """Messages that an endpoint hands out in one turn of the loop: some milliseconds, then others have their turn."""

    selection_turn_seconds: float = 0.005
    """What the selectors of all of a Message VPN's consumers take of one turn of the loop: about what the other things
    take that are done in one. One evaluation more may begin before it is over, which is as long at most."""

    log_slice_rows: int = 256
    """Messages sent to a log reader before its link is asked again whether it can take more."""

    log_turn_rows: int = 1_024
    """Messages sent to a log reader in one turn of the loop when nobody else wants it."""

    log_turn_rows_beside_live: int = 128
    """The same while there is live traffic, which then waits for a third of a millisecond; see ``HistoryPace``."""

    longest_pause: int = 16
    """The most that a log reader waits beside live traffic, in times of what its turns and pages took. Writing what it
    was sent to the socket comes on top: history is left with about a twelfth of a processor."""

    replay_ahead_without_consumer: int = 1_000
    """Messages that a replay puts on an endpoint that nobody consumes (Solace, "Message Replay": at most 1,000)."""

    replay_ahead_bytes: int = 32 * 1024 * 1024
    """Content that the replays of a Message VPN onto endpoints keep ahead of their consumers, all together: each has
    an equal share of it."""

    dead_letters_under_way: int = 1_000
    """Messages of one endpoint that are on their way to its dead message queue, beyond which no more are taken off: on
    a disk that takes nothing, a backlog of dead messages must not become memory."""

    expiry_sweep_seconds: float = 1.0
    """From the end of a sweep for expired messages to the next: how late a message may be taken off, about."""

    ageing_seconds: float = 60.0
    """From one look for messages that are older than the log keeps to the next: such a look is a binary search."""

    sizing_seconds: float = 60.0
    """From one look at how quickly the log grows, and what the disk has left, to the next."""

    rates_seconds: float = 5.0
    """An interval in which messages are counted for whoever looks at rates: short enough to see a burst in."""

    depths_seconds: float = 60.0
    """From one look at how deep endpoints are to the next."""

    archive_look_seconds: float = 60.0
    """From one look at what the log's archive has to the next, beside those that attaches make: one small read."""

    search_progress_seconds: float = 3.0
    """Between two log lines about one search for a replay's start."""

    pending_bytes: int = 64 * 1024 * 1024
    """Content accepted from sockets and not yet committed past which no more is read from publishers: a slow disk must
    not turn into memory."""
