"""
Base classes of attached links: of every kind, and of those that messages go out on. The simplest kind is here, too: a
link without a source, by which a durable subscription is given up.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, ClassVar, Final

from proton import Link

from amqp_ext.message.annotations import Splicer
from amqp_ext.transactions import Outcome
from gateway.amqp.client import Client
from gateway.amqp.engine.link_table import Sending
from gateway.amqp.engine.output import OutgoingTransfers
from gateway.amqp.nodes import Lease
from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.errors import ErrorCode, Refused
from gateway.core.model import ID, Row
from gateway.logging import log_keys
from gateway.vpn.clients import LinkState


class BaseLink(ABC):
    """
    An attached link.

    Args:
        link: The engine's.
        client: Of its connection.
    """

    kind: ClassVar[str]
    """What it is there for, as administrators are told."""

    def __init__(self, link: Link, client: Client) -> None:
        self.link = link
        self._links, self._output, self._log = client.links, client.output, client.log
        self._lease: Lease | None = None
        """What it has on a temporary node."""
        self._is_suspended = False
        """Its peer has detached it and not closed it."""

    @property
    def incoming(self) -> Callable[[], None] | None:
        """What takes its transfers."""
        return None

    @property
    def outgoing(self) -> Sending | None:
        """What takes its events one by one."""
        return None

    @property
    def _sent_count(self) -> int:
        """Messages that went over it."""
        return 0

    def state(self) -> LinkState:
        """What it is like now, for administrators."""
        link = self.link
        is_receiver = bool(link.is_sender)
        ours, theirs = (link.source, link.remote_source) if is_receiver else (link.target, link.remote_target)
        return LinkState(
            self._links.names.of(link),
            not is_receiver,
            str(ours.address or theirs.address or ""),
            self.kind,
            max(link.credit, 0),
            link.unsettled,
            self._sent_count,
        )

    @abstractmethod
    def ready(self) -> None:
        """Its attach is answered: give the first credit, or send what can be sent."""

    def writable(self) -> None:  # noqa: B027
        """It waited for room in its connection's output, and there is room."""

    @abstractmethod
    def detached(self, *, closed: bool) -> None:
        """The peer or we have detached (or closed) the link, or its session is gone."""

    @property
    def _stands_for_something(self) -> bool:
        """Whether it goes on to exist, suspended, when its peer detaches it and does not close it."""
        return False

    @property
    def _keeps_node(self) -> bool:
        """Whether a node is there as long as this link is, suspended or not."""
        return self._lease is not None and self._lease.lasts_suspended

    def suspend(self) -> bool:
        """The peer has detached the link and not closed it; whether it still stands for something."""
        self._is_suspended = self._stands_for_something
        return self._is_suspended

    def _end_if_idle(self) -> None:
        """Where it is suspended and stands for nothing any more, it ceases to exist."""
        if self._is_suspended and not self._stands_for_something:
            # Not at once: whoever has just told what was settled is not done with the engine's link.
            asyncio.get_running_loop().call_soon(self._links.end_suspended, self.link)

    def resume(self, older: Any) -> None:
        """This link takes the place of a suspended one of the same name, which ends right after."""
        if isinstance(older, BaseLink) and self._lease is not None and older._lease is not None:
            self._lease.take_over(older._lease)

    def lost(self) -> None:
        """The connection is gone."""
        self.detached(closed=False)

    def steal(self) -> None:
        """Another link of its name was attached (AMQP 1.0 section 2.6.1): it ends, if it has not already."""
        if self._is_suspended or self._links.is_attached(self):
            self.refuse(Refused(ErrorCode.STOLEN, "a link of this name was attached anew"))

    def refuse(self, refused: Refused) -> None:
        """Detach with an error; one that is suspended ends, and nobody is there to be told why."""
        if self._is_suspended:
            self._links.end_suspended(self.link)
        else:
            self._links.detach(self.link, refused)


ID_OF: Final = itemgetter(ID)


class SendingLink(BaseLink):
    """
    A link that messages go out on.

    Args:
        splicer: Puts header and annotations in front of a message.
        settles: Deliveries go out settled, whatever the receiver asked for: it has no say in them.
        default_outcome: What a delivery has come to that its receiver settles without an outcome.
    """

    def __init__(
        self,
        link: Link,
        client: Client,
        splicer: Splicer,
        *,
        settles: bool = False,
        default_outcome: Outcome,
    ) -> None:
        super().__init__(link, client)
        self.client = client.identity
        """Who receives on it."""
        self._waits_to_drain = False
        """There is nothing to send, and credit to be drained once all that was sent is written."""
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
        """Send what can be sent, or say what it can take, for the first time."""
        self.on_credit()

    @abstractmethod
    def on_credit(self) -> None:
        """The peer has given credit, or taken it back."""

    @abstractmethod
    def on_outcomes(
        self,
        accepted: list[int],
        others: list[tuple[int, int, bool, bool]],
        confirm: Callable[[], None] | None,
    ) -> None:
        """What the peer said of deliveries (see ``OutgoingTransfers``)."""

    def on_transactional(self, message_id: int, state: Any, delivery: Any) -> None:
        """A delivery got an outcome in a transaction."""
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


class UnsubscribingLink(BaseLink):
    """
    A link by which a durable subscription is given up.

    Args:
        endpoint: The subscription's.
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
        """Nothing was asked for: only a close is."""


def give_up(client: Client, endpoint: Endpoint) -> None:
    """Delete a subscription's endpoint, if it is there."""
    if client.vpn.endpoints.is_there(endpoint):
        client.vpn.endpoints.delete(endpoint)
        client.log.info("unsubscribed", **{log_keys.ENDPOINT: endpoint.name})
