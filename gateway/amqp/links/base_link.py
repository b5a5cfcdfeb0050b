"""
Base classes of attached links: of every kind, of links that bring messages for the gateway itself, and of links that
messages go out on. The simplest kind is here, too: a link without a source, whose close deletes a durable subscription.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any, ClassVar, Final

from proton import Delivery, Link

from amqp_ext.message.annotations import Splicer
from amqp_ext.transactions import Outcome
from gateway.amqp.client import Client
from gateway.amqp.engine.conditions import condition_of, room_of
from gateway.amqp.engine.link_table import AttachedLink, Sending
from gateway.amqp.engine.output import OutgoingLink, OutgoingTransfers
from gateway.amqp.nodes import Lease
from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.errors import ErrorCode, Refused
from gateway.core.model import ID, Row
from gateway.logging import log_keys


class BaseLink(AttachedLink):
    """
    An attached link of a client's.

    Args:
        link: The engine's link.
        client: The client of its connection.
    """

    def __init__(self, link: Link, client: Client) -> None:
        super().__init__(link, client.links)
        self._output, self._log = client.output, client.log
        self.lease: Lease | None = None
        """Its claim on a temporary node, or on a place in a consumer group."""

    @property
    def _keeps_node(self) -> bool:
        """Whether a node lives as long as this link, suspended or not."""
        return self.lease is not None and self.lease.lasts_suspended

    def resume(self, older: AttachedLink) -> None:
        if isinstance(older, BaseLink) and self.lease is not None and older.lease is not None:
            self.lease.take_over(older.lease)

    def detached(self, *, closed: bool) -> None:
        if self.lease is not None:
            self.lease.release()


class ControlLink(BaseLink):
    """A link that brings messages for the gateway itself. They are small, few at a time, and each is answered."""

    window: ClassVar[int]
    """Its credit: how many messages may be on their way."""
    most_bytes: ClassVar[int]
    """The largest message that is accepted."""

    def __init__(self, link: Link, client: Client) -> None:
        super().__init__(link, client)
        self._is_closed = False

    def ready(self) -> None:
        self.link.flow(self.window)

    def _take(self) -> bool:
        """Take the current message, if it has come completely; return whether another may follow."""
        link = self.link
        delivery = None if self._is_closed else link.current
        if delivery is None:
            return False
        size = delivery.pending
        if size > self.most_bytes:
            self.refuse(
                Refused(
                    ErrorCode.MESSAGE_TOO_LARGE,
                    f"a message of {size} bytes or more; at most {self.most_bytes} are accepted here",
                )
            )
            return False
        if delivery.aborted:
            link.advance()
            delivery.settle()
            link.flow(1)
            return True
        if delivery.partial:
            return False
        content = bytes(link.recv(size) or b"") if size else b""
        is_settled = delivery.settled
        link.advance()
        if is_settled:
            delivery.settle()
        self._came(content, None if is_settled else delivery)
        return True

    @abstractmethod
    def _came(self, content: bytes, delivery: Delivery | None) -> None:
        """A message has come; ``delivery`` is to get the outcome, and is None where the message came settled."""

    def _tell(self, delivery: Delivery, outcome: Any, refused: Refused | None = None) -> None:
        """Settle a delivery with an outcome, and why it is refused; give credit for another one."""
        if refused is not None:
            delivery.local.condition = condition_of(refused, room_of(self.link))
        delivery.update(outcome)
        delivery.settle()
        self.link.flow(1)
        self._output.schedule_flush()

    def detached(self, *, closed: bool) -> None:
        super().detached(closed=closed)
        self._is_closed = True


ID_OF: Final = itemgetter(ID)


class SendingLink(BaseLink, OutgoingLink):
    """
    A link that messages go out on.

    Args:
        splicer: Puts header and annotations in front of a message.
        settles: Whether deliveries go out settled, whatever the receiver asked for.
        default_outcome: The outcome of a delivery that its receiver settles without one.
    """

    def __init__(
        self, link: Link, client: Client, splicer: Splicer, *, settles: bool = False, default_outcome: Outcome
    ) -> None:
        super().__init__(link, client)
        self.client = client.identity
        """The client that receives on it."""
        self._waits_to_drain = False
        """There is nothing to send, and credit is to be drained once all output is written."""
        self.is_pre_settled = settles or link.remote_snd_settle_mode == Link.SND_SETTLED
        self.transfers = OutgoingTransfers(
            link,
            splicer,
            self._links.account,
            self,
            pre_settled=self.is_pre_settled,
            default_outcome=default_outcome,
        )

    @property
    def outgoing(self) -> Sending:
        return self.transfers

    @property
    def _sent_count(self) -> int:
        return self.transfers.sent

    def ready(self) -> None:
        """Send what can be sent, or tell the endpoint how much it can take, for the first time."""
        self.on_credit()

    def on_transactional(self, message_id: int, state: Any, delivery: Any) -> None:
        self._links.retire()

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
        """Go on sending, if that stopped because there was no room."""

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
        """The same; messages with ids below ``below`` are marked as replayed (``x-opt-replay-name``)."""
        send = self.transfers.send
        count = len(rows) if rows[-1][ID] < below else bisect_left(rows, below, key=ID_OF)
        if count == len(rows):
            send(rows, attempts, end_id, replay_name)
        else:
            if count:
                send(rows[:count], attempts, end_id, replay_name)
            send(rows[count:], attempts, end_id)
        self._output.sent()

    def take_back(self, ids: Sequence[int]) -> bool:
        """Take deliveries back from the peer (see ``gateway.vpn.clients``)."""
        self.transfers.take_back(ids)
        self._output.schedule_flush()
        return self.transfers.are_unconfirmed

    def on_confirmed(self) -> None:
        """See ``take_back``."""

    def on_renewed(self, ids: list[int]) -> None:
        """Nothing is locked here."""

    def nothing_to_send(self) -> None:
        """There is nothing to send now: credit that is to be drained can be used up."""
        self._waits_to_drain = not self.transfers.drained()
        if self._waits_to_drain:
            self._links.wait_for_output(self)
        self._output.schedule_flush()


class UnsubscribingLink(BaseLink):
    """
    A link whose close deletes a durable subscription.

    Args:
        endpoint: The subscription's endpoint.
    """

    kind = "unsubscribe"

    def __init__(self, link: Link, client: Client, endpoint: Endpoint) -> None:
        super().__init__(link, client)
        self._client = client
        self._endpoint = endpoint

    def ready(self) -> None:
        """Nothing is sent on it."""

    def detached(self, *, closed: bool) -> None:
        if closed:
            give_up(self._client, self._endpoint)

    def lost(self) -> None:
        """Keep the subscription: only a close deletes it."""


def give_up(client: Client, endpoint: Endpoint) -> None:
    """Delete a subscription's endpoint, if it is there."""
    if client.vpn.endpoints.is_there(endpoint):
        client.vpn.endpoints.delete(endpoint)
        client.log.info("unsubscribed", **{log_keys.ENDPOINT: endpoint.name})
