"""
An attached link that messages come in on: what each of them is, where it goes, and what its publisher is told of it.
"""

from __future__ import annotations

from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from proton import Link

from amqp_ext.addresses import queue_of_topic
from amqp_ext.codec import CodecError
from amqp_ext.message.sections import bare_offset
from gateway import log_keys
from gateway.amqp.attach.authorization import Denied
from gateway.amqp.attach.targets import address_in, topic_of_target
from gateway.amqp.engine.conditions import describe
from gateway.amqp.engine.transfers import IncomingTransfers
from gateway.amqp.links.batches import publish_batch
from gateway.amqp.links.outgoing import detach
from gateway.core.errors import ErrorCode, Refused
from gateway.vpn.transaction import Staged

if TYPE_CHECKING:
    from gateway.amqp.connection import Connection
    from gateway.amqp.nodes.temporary import Hold

DENIED_ADDRESSES: Final = 100
"""Addresses of a link's messages that are logged as not permitted: a peer cannot make the log grow without end."""


class PublishingLink:
    """
    A link that messages come in on.

    Args:
        topic: What its target publishes to; None for the anonymous relay, where each message's ``to`` decides.
        held: What it has on the temporary node that it sends to.
    """

    def __init__(self, connection: Connection, link: Link, topic: str | None, held: Hold | None) -> None:
        limits = connection.limits
        self._connection = connection
        self._link = link
        self._name = link.name
        self._topic = topic
        self._held = held
        self._vpn = connection.vpn
        self._origin = connection.origin
        self._relay_topics = connection.access.relay_topics
        self._denied: set[str] = set()
        """Addresses that were logged as not permitted."""
        self.transfers = IncomingTransfers(
            link,
            window=limits.link_credit,
            max_message_bytes=limits.max_message_bytes,
            on_messages=self._arrived,
            on_too_large=self._too_large,
            on_transactional=self._transactional,
        )
        self._batches = connection.batches
        if self._batches is not None:
            self._batches.follow(link.name)
            self.transfers.expect_batches(partial(self._batches.is_batch, link.name), self._batch)

    @property
    def key(self) -> Any:
        return self.transfers.key

    # --- messages come ------------------------------------------------------------------------------------------

    def _arrived(self, contents: list[bytes], deliveries: list[Any] | None) -> None:
        try:
            bares = list(map(bare_offset, contents))
        except CodecError:
            self._sort_out(contents, deliveries)
            return
        if self._topic is not None:
            self._publish(self._topic, contents, bares, deliveries)
        else:
            self._relay(contents, bares, deliveries)

    def _sort_out(self, contents: list[bytes], deliveries: list[Any] | None) -> None:
        """Some are no messages: those are rejected, the others go on."""
        for index, content in enumerate(contents):
            own = None if deliveries is None else [deliveries[index]]
            try:
                bare_offset(content)
            except CodecError as error:
                self.not_stored(
                    own or [], Refused(ErrorCode.DECODE_ERROR, f"this is no AMQP message: {error}")
                )
            else:
                self._arrived([content], own)

    def _publish(
        self, topic: str, contents: list[bytes], bares: list[int], deliveries: list[Any] | None
    ) -> None:
        if self._is_without_queue(topic):
            deleted = Refused(
                ErrorCode.RESOURCE_DELETED, f"there is no queue {queue_of_topic(topic)!r} any more"
            )
            self.not_stored(deliveries or [], deleted)
            self.refuse(deleted)
        elif deliveries is None:
            self._vpn.publish(self, topic, contents, bares, [], is_direct=True, origin=self._origin)
        else:
            self._vpn.publish(self, topic, contents, bares, deliveries, origin=self._origin)

    def _relay(self, contents: list[bytes], bares: list[int], deliveries: list[Any] | None) -> None:
        """The anonymous relay: neighbours to the same address stay together."""
        addresses = list(map(address_in, contents))
        start = 0
        for address, group in groupby(addresses):
            stop = start + len(list(group))
            own = None if deliveries is None else deliveries[start:stop]
            try:
                topic = self._topic_of(address)
            except Refused as refused:
                if isinstance(refused, Denied):
                    self._log_denied(str(address), refused)
                self.not_stored(own or [], refused)
            else:
                self._publish(topic, contents[start:stop], bares[start:stop], own)
            start = stop

    def _topic_of(self, to: str | CodecError | None) -> str:
        if isinstance(to, CodecError):
            raise Refused(ErrorCode.DECODE_ERROR, f"this is no AMQP message: {to}")
        topic = self._relay_topics.get(to) if to is not None else None
        if topic is None or self._is_without_queue(topic):
            if not to:
                raise Refused(
                    ErrorCode.INVALID_FIELD, "a message to the anonymous relay says in `to` where it goes"
                )
            topic = topic_of_target(self._connection, to, ())
            self._connection.access.remember_relay_topic(to, topic)
        return topic

    def _is_without_queue(self, topic: str) -> bool:
        """The topic is that of a queue which was deleted."""
        queue = queue_of_topic(topic)
        return queue is not None and self._vpn.broker.find(queue) is None

    def _log_denied(self, to: str, denied: Denied) -> None:
        """One line for an address, however many messages go there."""
        if to in self._denied or len(self._denied) >= DENIED_ADDRESSES:
            return
        self._denied.add(to)
        self._connection.warn(
            "publish_refused",
            **{
                log_keys.LINK: self._connection.names.of(self._link),
                log_keys.ADDRESS: to,
                log_keys.CONDITION: denied.code.condition,
                log_keys.RULE: denied.rule,
                log_keys.REASON: denied.text,
            },
        )

    def _batch(self, content: bytes, delivery: Any) -> None:
        assert self._batches is not None
        publish_batch(self._vpn, self, self._batches.messages_of, content, delivery, self._origin)

    def _too_large(self, size_bytes: int, state: Any) -> None:
        limit = self._connection.limits.max_message_bytes
        refused = Refused(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"a message of {size_bytes} bytes or more; at most {limit} are taken (max_message_bytes)",
        )
        if state is not None:
            self._connection.transactions.not_taken(state, refused)
        self.refuse(refused)

    # --- in a transaction ---------------------------------------------------------------------------------------

    def _transactional(self, content: bytes, delivery: Any, state: Any) -> None:
        self._connection.transactions.publish(self, content, delivery, state)

    def stage(self, content: bytes) -> Staged:
        """
        A message as it is kept until its transaction commits.

        Raises:
            Refused: It is no message, or may not be sent where it wants to go.
        """
        try:
            bare = bare_offset(content)
        except CodecError as error:
            raise Refused(ErrorCode.DECODE_ERROR, f"this is no AMQP message: {error}") from error
        topic = self._topic
        if topic is None:
            address = address_in(content)
            try:
                topic = self._topic_of(address)
            except Denied as denied:
                self._log_denied(str(address), denied)
                raise
        if self._is_without_queue(topic):
            raise Refused(ErrorCode.RESOURCE_DELETED, f"there is no queue {queue_of_topic(topic)!r} any more")
        return Staged(topic, content, bare)

    def presume(self, delivery: Any, state: bytes) -> None:
        """Tell the outcome that a delivery has if its transaction commits; None came settled."""
        if delivery is not None:
            self.transfers.presume(delivery, state)
            self._connection.schedule_flush()

    # --- what became of them ------------------------------------------------------------------------------------

    def accepted(self, deliveries: Any) -> None:
        if deliveries:
            self.transfers.accept(deliveries)
            self._connection.schedule_flush()

    def not_stored(self, deliveries: Any, refused: Refused | None) -> None:
        if not deliveries:
            return
        if refused is None:
            self.transfers.release(deliveries)
        else:
            self.transfers.reject(deliveries, describe(refused))
        self._connection.schedule_flush()

    # --- the link -------------------------------------------------------------------------------------------------

    def detached(self, *, closed: bool) -> None:
        self.transfers.is_closed = True
        if self._batches is not None:
            self._batches.forget(self._name)
        if self._held is not None:
            self._held.release()

    def lost(self) -> None:
        self.detached(closed=True)

    def refuse(self, refused: Refused) -> None:
        detach(self._connection, self._link, refused)
