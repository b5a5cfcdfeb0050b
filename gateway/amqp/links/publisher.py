"""
The link of a publisher: it decides where each message goes, publishes it, and tells the publisher the outcome.

Several messages that come as one batch are published as one: all of them are in the log, next to each other, or none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import groupby
from typing import Any, Final

from proton import Link, Terminus

from amqp_ext.addresses.address import AddressKind, parse_target, queue_of_topic, queue_topic
from amqp_ext.addresses.forms import AddressError
from amqp_ext.codec import CodecError
from amqp_ext.message.fields import Destination, destination_of
from amqp_ext.message.sections import bare_offsets
from amqp_ext.terminus_fields import REJECTED, RELEASED
from amqp_ext.topics import TopicSyntaxError
from gateway.amqp.client import Client
from gateway.amqp.engine.conditions import Denied, describe, reason_keys, room_of
from gateway.amqp.engine.input import IncomingTransfers
from gateway.amqp.engine.loops import LOOPS
from gateway.amqp.engine.native import tag_of
from gateway.amqp.links.base_link import BaseLink
from gateway.amqp.nodes import Lease
from gateway.amqp.transactions import rejected_in
from gateway.core.errors import ErrorCode, Refused
from gateway.logging import log_keys
from gateway.vpn.publishing import Staged, bare_offset_of

DENIED_ADDRESSES: Final = 100
"""Addresses of a link's messages that are logged as not permitted: a peer cannot make the log grow without end."""

KNOWN_CHARACTERS: Final = 1_000
"""Longest address of a message that is remembered: any topic fits, and a host and options may make it far longer."""

RELAY_TOPICS: Final = 10_000
"""Addresses of the anonymous relay that are remembered for a user and a VPN; one more, and all are forgotten."""


class Publisher(BaseLink):
    """
    A link that messages come in on.

    Args:
        topic: What its target publishes to; None for the anonymous relay, where each message's ``to`` decides.
        lease: Its lease on the temporary node that it sends to.
        outcomes: The outcomes that its source supports.
    """

    kind = "publisher"

    def __init__(
        self,
        link: Link,
        client: Client,
        *,
        topic: str | None,
        lease: Lease | None,
        outcomes: Collection[str],
    ) -> None:
        super().__init__(link, client)
        self._client = client
        self._name = link.name
        self._topic = topic
        self._queue = None
        """The queue whose deletion detaches the link. Without it, the next message is refused instead."""
        if topic is not None and not client.spoken.targets_are_exchanges:
            self._queue = queue_of_topic(topic)
        self._outcomes = outcomes
        self.lease = lease
        self._unanswered = 0
        """Deliveries whose outcome is not known yet."""
        self._publishing = client.vpn.publishing
        self._endpoints = client.vpn.endpoints
        self._registry = client.owner.registry
        self._origin = client.identity.origin
        limits = client.limits
        self._max_annotations_bytes = limits.max_annotations_bytes
        self._known_topics = client.relay_topics
        """The topics of the ``to`` of earlier messages, as far as the user may publish to them."""
        self._transactions = client.transactions
        self._denied: set[str] = set()
        """Addresses that were logged as not permitted."""
        self.transfers = IncomingTransfers(
            link,
            window=limits.link_credit,
            max_message_bytes=limits.max_message_bytes,
            on_messages=self._came,
            on_too_large=self._too_large,
            on_transactional=self._transactional,
        )
        self._tags: list[bytes] = []
        """On a relay, the delivery-tags of the latest messages, in order: they name messages that cannot be routed."""
        batches = self._batches = client.batches
        if topic is None and batches is None:
            self.transfers.expect_batches(self._note_tag, self._batch)
        if batches is not None:
            batches.follow(link.name)
            self.transfers.expect_batches(partial(batches.is_batch, link.name), self._batch)

    @property
    def incoming(self) -> Callable[[], None]:
        return self.transfers.receive

    @property
    def _sent_count(self) -> int:
        return self.transfers.taken

    def ready(self) -> None:
        """The attach is answered: grant the first credit."""
        if self._queue is not None:
            self._endpoints.sender_came(self._queue, self.refuse)
        self.transfers.open()

    # --- messages come ------------------------------------------------------------------------------------------

    def _came(self, contents: list[bytes], deliveries: list[Any] | None) -> None:
        if deliveries is not None:
            self._unanswered += len(deliveries)
        self._arrived(contents, deliveries)
        self._tags.clear()

    def _note_tag(self, tag: bytes) -> bool:
        """No delivery is a batch here."""
        self._tags.append(tag)
        return False

    def _arrived(self, contents: list[bytes], deliveries: list[Any] | None, first: int = 0) -> None:
        """Publish messages; ``first`` is the index of the first one among all that came together."""
        try:
            bares = bare_offsets(contents)
        except CodecError:
            self._sort_out(contents, deliveries, first)
            return
        if max(bares) > self._max_annotations_bytes:
            self._sort_out(contents, deliveries, first)
            return
        if self._topic is not None:
            self._publish(self._topic, contents, bares, deliveries)
        else:
            self._relay(contents, bares, deliveries, first)

    def _sort_out(self, contents: list[bytes], deliveries: list[Any] | None, first: int) -> None:
        """Reject the messages that cannot be taken, and go on with the rest."""
        for index, content in enumerate(contents):
            own = None if deliveries is None else [deliveries[index]]
            try:
                self._bare_offset_of(content)
            except Refused as refused:
                self.not_stored(own or [], refused)
            else:
                self._arrived([content], own, first + index)
            if self.transfers.is_closed:
                return

    def _bare_offset_of(self, content: bytes) -> int:
        """Where the bare message of a message begins; raises ``Refused`` as the function does."""
        return bare_offset_of(content, self._max_annotations_bytes)

    def _publish(
        self, topic: str, contents: list[bytes], bares: list[int], deliveries: list[Any] | None
    ) -> None:
        if self._is_without_node(topic):
            deleted = _deleted(topic)
            self.not_stored(deliveries or [], deleted)
            self.refuse(deleted)
        else:
            self._publishing.publish(
                self,
                topic,
                contents,
                bares,
                deliveries or [],
                is_direct=deliveries is None,
                origin=self._origin,
            )

    def _relay(
        self, contents: list[bytes], bares: list[int], deliveries: list[Any] | None, first: int
    ) -> None:
        """The anonymous relay: adjacent messages to the same address are published together."""
        destinations = map(destination_in, contents, bares)
        start = 0
        for destination, group in groupby(destinations):
            stop = start + len(list(group))
            own = None if deliveries is None else deliveries[start:stop]
            try:
                topic = self._topic_of(destination)
            except Refused as refused:
                if isinstance(refused, Denied):
                    self._log_denied(destination, refused)
                self._not_routed(own, self._tags[first + start : first + stop], refused)
            else:
                self._publish(topic, contents[start:stop], bares[start:stop], own)
            if self.transfers.is_closed:
                return
            start = stop

    def _not_routed(self, deliveries: list[Any] | None, tags: list[bytes], refused: Refused) -> None:
        """
        These messages cannot be routed: reject each one with its delivery-tag; where that is impossible, detach the
        link with the first tag (Using the Anonymous Terminus for Message Routing, section 2.2.2).
        """
        if deliveries is None or REJECTED not in self._outcomes:
            self.refuse(_about(tags[0], refused) if tags else refused)
            return
        for index, delivery in enumerate(deliveries):
            self.not_stored([delivery], _about(tags[index], refused) if tags else refused)

    def _topic_of(self, destination: Destination | CodecError) -> str:
        if isinstance(destination, CodecError):
            raise Refused(ErrorCode.DECODE_ERROR, f"this is not an AMQP message: {destination}")
        topic = self._known_topics.get(destination)
        if topic is None or self._is_without_node(topic):
            to, capabilities = destination
            if not to:
                raise Refused(
                    ErrorCode.INVALID_FIELD, "a message to the anonymous relay needs an address in `to`"
                )
            topic = topic_of_target(self._client, to, capabilities)
            if len(to) <= KNOWN_CHARACTERS:
                if len(self._known_topics) >= RELAY_TOPICS:
                    self._known_topics.clear()
                self._known_topics[destination] = topic
        return topic

    def _is_without_node(self, topic: str) -> bool:
        """Whether the topic is that of a deleted queue, or of a temporary topic that is gone."""
        queue = queue_of_topic(topic)
        if queue is None:
            return self._registry.is_without_topic(topic)
        return self._endpoints.by_name.get(queue) is None

    def _log_denied(self, destination: Destination | CodecError, denied: Denied) -> None:
        """One line for an address, however many messages go there."""
        to = str(destination.address if isinstance(destination, Destination) else destination)[
            :KNOWN_CHARACTERS
        ]
        if to in self._denied or len(self._denied) >= DENIED_ADDRESSES:
            return
        self._denied.add(to)
        self._log.warning(
            "publish_refused",
            **{log_keys.LINK: self._links.names.of(self.link), log_keys.ADDRESS: to},
            **reason_keys(denied),
        )

    def _batch(self, content: bytes, delivery: Any) -> None:
        """
        Publish the messages in a batch: all of them are in the log, next to each other, or none. The batch's delivery
        (None where it came settled) is accepted once all of them are durable.
        """
        assert self._batches is not None
        self._unanswered += delivery is not None
        deliveries = [] if delivery is None else [delivery]
        try:
            topic = self.stage(content).topic
            staged = [
                Staged(topic, message, self._bare_offset_of(message))
                for message in self._batches.messages_of(content)
            ]
        except CodecError as error:
            self.not_stored(deliveries, Refused(ErrorCode.DECODE_ERROR, f"this is not a batch: {error}"))
            return
        except Refused as refused:
            self.not_stored(deliveries, refused)
            return

        def then(error: Exception | None) -> None:
            if error is None:
                self.accepted(deliveries)
            else:
                why = f"the store could not write: {error}; nothing was stored"
                self.not_stored(deliveries, Refused(ErrorCode.INTERNAL, why))

        try:
            self._publishing.commit_transaction(staged, (), self._origin, then)
        except Refused as refused:
            whole = f"a batch is accepted as a whole or not at all: {refused.text}"
            self.not_stored(deliveries, Refused(ErrorCode.RESOURCE_LIMIT, whole))

    def _too_large(self, size_bytes: int, state: Any) -> None:
        limit = self._client.limits.max_message_bytes
        refused = Refused(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"a message of {size_bytes} bytes or more; at most {limit} are accepted (max_message_bytes)",
        )
        if state is not None:
            self._transactions.not_taken(state, refused)
        self.refuse(refused)

    # --- in a transaction ---------------------------------------------------------------------------------------

    def _transactional(self, content: bytes, delivery: Any, state: Any) -> None:
        self._unanswered += delivery is not None
        self._transactions.publish(self, content, delivery, state)

    def stage(self, content: bytes) -> Staged:
        """
        Prepare a message to be kept until its transaction commits.

        Raises:
            Refused: It is no message, its annotations are too large, or it may not be sent to its destination.
        """
        bare = self._bare_offset_of(content)
        topic = self._topic
        if topic is None:
            destination = destination_in(content, bare)
            try:
                topic = self._topic_of(destination)
            except Denied as denied:
                self._log_denied(destination, denied)
                raise
        if self._is_without_node(topic):
            raise _deleted(topic)
        return Staged(topic, content, bare)

    def reject_in(self, txn_id: bytes, delivery: Any, refused: Refused) -> None:
        """Reject a message that its failed transaction does not take; one that came settled gets no outcome."""
        if delivery is None:
            return
        if self._topic is None:
            refused = _about(tag_of(LOOPS.delivery_at(delivery)), refused)
        if REJECTED in self._outcomes:
            self.set_provisional_outcome(delivery, rejected_in(txn_id, refused, room_of(self.link)))
        else:
            self.refuse(refused)

    def set_provisional_outcome(self, delivery: Any, state: bytes) -> None:
        """Tell the peer which outcome a delivery gets if its transaction commits; does nothing for None."""
        if delivery is not None:
            self.transfers.set_provisional_outcome(delivery, state)
            self._unanswered -= 1
            self._output.schedule_flush()

    # --- outcomes -----------------------------------------------------------------------------------------------

    def accepted(self, deliveries: Any, *, at_once: bool = False) -> None:
        """These deliveries are durable: tell the publisher (``gateway.vpn.clients.PublisherLink``)."""
        if deliveries:
            self.transfers.accept(deliveries)
            self._answered(len(deliveries))
            if at_once:
                self._output.flush()

    def not_stored(self, deliveries: Any, refused: Refused | None) -> None:
        """These deliveries were not taken: rejected with a reason, or released where there is none."""
        if not deliveries:
            return
        if refused is None and RELEASED not in self._outcomes:
            refused = Refused(ErrorCode.NOT_FOUND, "no endpoint or log takes messages of this topic")
        if refused is None:
            self.transfers.release(deliveries)
        elif REJECTED in self._outcomes:
            self.transfers.reject(deliveries, describe(refused, room_of(self.link)))
        else:
            # The source supports no outcome that says this.
            self.refuse(refused)
        self._answered(len(deliveries))

    def _answered(self, count: int) -> None:
        self._unanswered -= count
        self._output.schedule_flush()
        self._end_if_idle()

    # --- the link -------------------------------------------------------------------------------------------------

    @property
    def _stands_for_something(self) -> bool:
        """
        Whether it waits for outcomes, or has a dynamic node: until the session ends, a detached link still gets the
        outcomes, and keeps the node (AMQP 1.0 sections 2.6.3 and 3.5.10).
        """
        if self.link.remote_target.expiry_policy == Terminus.EXPIRE_WITH_LINK:
            return False
        return self._keeps_node or self._unanswered > 0

    def detached(self, *, closed: bool) -> None:
        if self._queue is not None:
            self._endpoints.sender_left(self._queue, self.refuse)
        self.transfers.close()
        if self._batches is not None:
            self._batches.forget(self._name)
        super().detached(closed=closed)


def _deleted(topic: str) -> Refused:
    """Why a message is refused whose queue or temporary topic was deleted after the link attached."""
    queue = queue_of_topic(topic)
    what = f"temporary topic {topic!r}" if queue is None else f"queue {queue!r}"
    return Refused(ErrorCode.RESOURCE_DELETED, f"there is no {what} any more")


def _about(tag: bytes, refused: Refused) -> Refused:
    """The same refusal, with the delivery-tag that it is about."""
    return Refused(refused.code, refused.text, **{**refused.info, "delivery-tag": tag})


def destination_in(content: bytes, bare: int) -> Destination | CodecError:
    """
    The destination of a message to the relay, or why it cannot be read.

    Args:
        bare: Where its bare message begins.
    """
    try:
        return destination_of(content, bare)
    except CodecError as error:
        return error


def topic_of_target(client: Client, address: str, capabilities: Sequence[str]) -> str:
    """
    The topic that a target address publishes to; a queue it names is made where that is allowed.

    Raises:
        Refused: It is no address to send to.
    """
    vpn = client.vpn
    try:
        own_topic = client.spoken.topic_of(address)
        if own_topic is not None:
            address = f"topic://{own_topic}"
        parsed = parse_target(address, capabilities)
        client.authorization.require_target(parsed)
        if parsed.kind is AddressKind.TOPIC:
            client.owner.registry.check_topic(parsed.name)
            return _with_its_queue(client, vpn.publishing.check_topic(parsed.name))
    except (AddressError, TopicSyntaxError) as error:
        code = ErrorCode.NOT_ALLOWED if address.lower().startswith("log:") else ErrorCode.INVALID_FIELD
        raise Refused(code, str(error)) from error
    if parsed.kind is AddressKind.LOG:
        raise Refused(ErrorCode.NOT_ALLOWED, f"{address!r} is a log, which can only be read")
    if parsed.kind is AddressKind.QUEUE:
        return queue_topic(client.queue_at(parsed).name)
    raise Refused(ErrorCode.NOT_IMPLEMENTED, f"nothing can be sent to {address!r}")


def _with_its_queue(client: Client, topic: str) -> str:
    """
    Check a topic to publish to: if it is a queue's, the queue has to exist.

    Raises:
        Refused: NOT_FOUND.
    """
    queue = queue_of_topic(topic)
    if queue is not None and client.vpn.endpoints.by_name.get(queue) is None:
        raise Refused(
            ErrorCode.NOT_FOUND,
            f"there is no queue {queue!r}; a message sent to 'queue://{queue}' can create it",
        )
    return topic
