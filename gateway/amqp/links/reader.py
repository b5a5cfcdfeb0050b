"""
The link of a reader of the log or of a stream, or of a browser of a queue. Outcomes change nothing: reading writes
nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from proton import Link

from amqp_ext.message.annotations import Splicer
from amqp_ext.transactions import Outcome
from gateway.amqp.client import Client
from gateway.amqp.engine.native import ACCEPTED
from gateway.amqp.engine.output import Confirm, Others
from gateway.amqp.links.base_link import SendingLink
from gateway.core.model import Row

FINISH_SECONDS: Final = 30.0
"""How long a bounded replay that has sent everything waits for settlements before it detaches."""


class Feed(Protocol):
    """Where a reader's messages come from."""

    def run(self) -> None:
        """Send what the link takes. Called when credit or room came."""

    def close(self) -> None:
        """The link is gone."""


class ReaderLink(SendingLink):
    """
    A reader.

    Args:
        settles: Deliveries go out settled. Event Hubs' clients ask for unsettled deliveries, but settle none.

    Attributes:
        account: The account of its connection.
    """

    kind = "reader"

    def __init__(self, link: Link, client: Client, splicer: Splicer, *, settles: bool = False) -> None:
        super().__init__(link, client, splicer, settles=settles, default_outcome=Outcome(ACCEPTED))
        self.account = client.links.account
        self._feed: Feed | None = None
        self._max_unsettled = client.limits.max_unsettled_per_flow
        self._waits_for_outcomes = False
        """It has as many unsettled deliveries as it may: settling some makes room."""
        self._is_finished = False
        self._replay_name, self._marked_below = "", 0
        self._end_timer: asyncio.TimerHandle | None = None

    def begin(self, feed: Feed) -> None:
        """The attach is answered: messages may go out."""
        self._feed = feed

    def on_credit(self) -> None:
        self._waits_for_outcomes = False
        if self._feed is not None:
            self._feed.run()
        if self._may_send <= 0:
            # It gets no message before it settles one: a drain does not wait for that.
            self.nothing_to_send()

    def mark(self, replay_name: str, below: int) -> None:
        """Mark messages with ids below ``below``, which are history, with the name of the replay."""
        self._replay_name, self._marked_below = replay_name, below

    def send(self, rows: Sequence[Row], attempts: Mapping[int, int], end_id: int | None) -> None:
        if self._replay_name:
            self.send_marked(rows, attempts, end_id, self._replay_name, self._marked_below)
        else:
            super().send(rows, attempts, end_id)

    def room(self) -> int:
        may_send = self._may_send
        self._waits_for_outcomes = may_send <= 0
        return min(super().room(), may_send)

    @property
    def _may_send(self) -> int:
        """How many more deliveries it may have unsettled; deliveries that go out settled do not count."""
        return self._max_unsettled - self.transfers.unsettled_count

    def on_outcomes(self, accepted: list[int], others: Others, confirm: Confirm) -> None:
        if confirm is not None:
            confirm()
            self._output.schedule_flush()
        if self._is_finished and not self.transfers.unsettled_count:
            self._end()
        elif self._waits_for_outcomes:
            self.on_credit()

    def on_transactional(self, message_id: int, state: Any, delivery: Any) -> None:
        super().on_transactional(message_id, state, delivery)
        if delivery is not None:
            self.transfers.settle(delivery, ACCEPTED)
        self.on_outcomes([], [], None)

    def _resume(self) -> None:
        if self.transfers.credit > 0:
            self.on_credit()

    def detached(self, *, closed: bool) -> None:
        self.transfers.close()
        if self._end_timer is not None:
            self._end_timer.cancel()
            self._end_timer = None
        if self._feed is not None:
            self._feed.close()
            self._feed = None
        super().detached(closed=closed)

    def finish(self) -> None:
        """A bounded replay is over: detach without error, once its reader has settled what it got."""
        # A client that settles has time for the rest. For a client that never settles, the last message marks the end.
        self._is_finished = True
        if self.transfers.unsettled_count:
            self._end_timer = asyncio.get_running_loop().call_later(FINISH_SECONDS, self._end)
        else:
            self._end()

    def _end(self) -> None:
        if not self.transfers.is_closed:
            self._links.detach(self.link, None)
