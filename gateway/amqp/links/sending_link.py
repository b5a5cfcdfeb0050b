"""
What links that messages go out on have in common, those of a queue's consumers and those of readers.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final

from proton import Link

from amqp_ext.message.annotations import Splicer
from amqp_ext.transactions import Outcome
from gateway.amqp.connected_client import ConnectedClient
from gateway.amqp.engine.attached_link import Sending
from gateway.amqp.engine.carrier import Carrier
from gateway.amqp.engine.outgoing_transfers import OutgoingTransfers
from gateway.amqp.links.base_link import BaseLink
from gateway.core.model import ID, Row

ID_OF: Final = itemgetter(ID)


class SendingLink(BaseLink):
    """
    A link that messages go out on.

    Args:
        client: Who receives them.
        splicer: Puts header and annotations in front of a message.
        settles: Deliveries go out settled, whatever the receiver asked for: it has no say in them.
        default_outcome: What a delivery has come to that its receiver settles without an outcome.
    """

    def __init__(
        self,
        link: Link,
        carrier: Carrier,
        client: ConnectedClient,
        splicer: Splicer,
        *,
        settles: bool = False,
        default_outcome: Outcome,
        on_credit: Callable[[], None],
        on_outcomes: Callable[
            [list[int], list[tuple[int, int, bool, bool]], Callable[[], None] | None], None
        ],
    ) -> None:
        super().__init__(link, carrier)
        self.client = client
        self._waits_to_drain = False
        """There is nothing to send, and credit to be drained once all that was sent is written."""
        self.is_pre_settled = settles or link.remote_snd_settle_mode == Link.SND_SETTLED
        self.transfers = OutgoingTransfers(
            link,
            splicer,
            self._links.account,
            pre_settled=self.is_pre_settled,
            default_outcome=default_outcome,
            on_credit=on_credit,
            on_outcomes=on_outcomes,
            on_transactional=self._retired,
        )

    @property
    def outgoing(self) -> Sending:
        return self.transfers

    @property
    def _sent_count(self) -> int:
        return self.transfers.sent

    def _retired(self, message_id: int, state: Any, delivery: Any) -> None:
        self._links.retire()
        self._transactional(message_id, state, delivery)

    @abstractmethod
    def _transactional(self, message_id: int, state: Any, delivery: Any) -> None:
        """A delivery got an outcome in a transaction."""

    def room(self) -> int:
        """How many messages it can take right now: by credit, and by what its connection still has to write."""
        transfers = self.transfers
        room = transfers.room(self._output.free_bytes)
        if room <= 0 and transfers.credit > 0:
            self._links.wait_for_output(self)
        return room

    def writable(self) -> None:
        """The connection has room for output again."""
        if not self._waits_to_drain:
            self._resume()
        elif self.transfers.drained():
            self.nothing_to_send()
        else:
            self._links.wait_for_output(self)

    @abstractmethod
    def _resume(self) -> None:
        """Go on sending, where that stopped for want of room."""

    def send(self, rows: Sequence[Row], attempts: Mapping[int, int], end_id: int | None) -> None:
        """Send messages, at most ``room`` (see ``gateway.vpn.clients``)."""
        self.transfers.send(rows, attempts, end_id)
        self._output.sent()

    def send_marked(
        self,
        rows: Sequence[Row],
        attempts: Mapping[int, int],
        end_id: int | None,
        replay_name: str,
        below: int,
    ) -> None:
        """The same; those with ids below one are marked as replayed (``x-opt-replay-name``)."""
        send = self.transfers.send
        count = len(rows) if rows[-1][ID] < below else bisect_left(rows, below, key=ID_OF)
        if count == len(rows):
            send(rows, attempts, end_id, replay_name)
        else:
            if count:
                send(rows[:count], attempts, end_id, replay_name)
            send(rows[count:], attempts, end_id)
        self._output.sent()

    def nothing_to_send(self) -> None:
        """There is nothing to send now: credit that is to be drained can be used up."""
        self._waits_to_drain = not self.transfers.drained()
        if self._waits_to_drain:
            self._links.wait_for_output(self)
        self._output.schedule_flush()
