"""
Publishing to a Message VPN: messages from links as they come, and those of a client's transaction, all or nothing.

Invariant of a transaction: between its first check and the hand-over to the committer nothing else runs, and one batch
is one transaction of the store. Ids are given out here, so publish order is commit order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

from amqp_ext.addresses.queue_names import topic_endpoint_of_topic
from amqp_ext.codec import CodecError
from amqp_ext.message.sections import bare_offset
from amqp_ext.topics import check_topic
from gateway.core.broker import Broker
from gateway.core.effects import Publication
from gateway.core.endpoint.endpoint import Flow
from gateway.core.errors import ErrorCode, Refused
from gateway.core.model import ID
from gateway.core.publications import Origins, TooLarge
from gateway.core.settlements import PendingSettlement
from gateway.core.trimming import LogFull
from gateway.vpn.clients import PublisherLink
from gateway.vpn.clock import Clock
from gateway.vpn.committer import Committer
from gateway.vpn.counters import Counters
from gateway.vpn.delivery.consumers import Consumers
from gateway.vpn.log_room import LogRoom, RoomMaker, WaitingMessages
from gateway.vpn.settings import CurrentSettings
from gateway.vpn.telemetry.message_tracing import MessageTracing
from store.errors import WriteFailed


def bare_offset_of(content: bytes, max_annotations_bytes: int) -> int:
    """
    Where the bare message of a message begins that a publisher sends.

    Raises:
        Refused: DECODE_ERROR, it is no message; RESOURCE_LIMIT, too much stands in front of it.
    """
    try:
        bare = bare_offset(content)
    except CodecError as error:
        raise Refused(ErrorCode.DECODE_ERROR, f"this is no AMQP message: {error}") from error
    if bare > max_annotations_bytes:
        raise Refused(
            ErrorCode.RESOURCE_LIMIT,
            f"a message with {bare} bytes of header and annotations; at most {max_annotations_bytes} are "
            "taken (max_annotations_bytes)",
        )
    return bare


@dataclass(frozen=True, slots=True)
class Staged:
    """A message that waits for its transaction's commit."""

    topic: str
    content: bytes
    bare: int
    """Where its bare message begins."""


class _Nobody:
    """Publisher of a transaction's messages, as far as single deliveries go: the discharge's answer speaks for all."""

    def accepted(self, deliveries: Any, *, at_once: bool = False) -> None: ...

    def not_stored(self, deliveries: Any, refused: Refused | None) -> None: ...


NOBODY: Final = _Nobody()


class Publishing:
    def __init__(
        self,
        broker: Broker,
        committer: Committer,
        consumers: Consumers,
        origins: Origins,
        counters: Counters,
        settings: CurrentSettings,
        clock: Clock,
        refusal: Callable[[], Refused | None],
        trimmer: RoomMaker,
        loop: asyncio.AbstractEventLoop,
        tracing: MessageTracing | None = None,
    ) -> None:
        """
        Args:
            trimmer: Makes room in the log, while publishers wait for it.
            refusal: Why no client's message is taken now; None when it is.
            tracing: Is told of messages; None where nothing is traced.
        """
        self._broker = broker
        self._committer = committer
        self._consumers = consumers
        self._origins = origins
        self._counters = counters
        self._settings = settings
        self._now_ms = clock.now_ms
        self._refusal = refusal
        self._tracing = tracing
        self._room = LogRoom(broker, committer, trimmer, settings, loop, self._offer)

    def check_topic(self, topic: str) -> str:
        """
        The topic, if it may be published to here.

        Raises:
            amqp_ext.topics.TopicSyntaxError: It is none.
            Refused: INVALID_FIELD, it is longer or deeper than this VPN takes; NOT_ALLOWED, it is a topic endpoint's
                own.
        """
        check_topic(topic)
        if topic_endpoint_of_topic(topic) is not None:
            raise Refused(
                ErrorCode.NOT_ALLOWED,
                f"{topic[:80]!r} is for the gateway alone: what a topic endpoint has is published to its topics",
            )
        limits = self._settings.vpn
        if len(topic.encode()) > limits.max_topic_bytes:
            raise Refused(ErrorCode.INVALID_FIELD, f"a topic has at most {limits.max_topic_bytes} bytes here")
        if topic.count("/") >= limits.max_topic_levels:
            raise Refused(
                ErrorCode.INVALID_FIELD, f"a topic has at most {limits.max_topic_levels} levels here"
            )
        return topic

    def publish(
        self,
        client: PublisherLink,
        topic: str,
        contents: list[bytes],
        bares: list[int],
        deliveries: list[Any],
        *,
        is_direct: bool = False,
        origin: str = "",
    ) -> None:
        """
        Messages of one topic came in on a link; it is told of each delivery once that is true.

        Args:
            contents: Messages as received.
            bares: Where each one's bare message begins.
            deliveries: One for each of ``contents``; none when they came settled (``is_direct``).
            origin: The publisher's container-id, see ``Origins``.
        """
        refused = self._refusal()
        if refused is not None:
            self._not_taken(client, contents, deliveries, refused, is_direct=is_direct)
            return
        left, full = len(contents), None
        if not (self._room and self._room.is_behind(client, topic)):
            left, full = self._take(
                client, topic, contents, bares, deliveries, is_direct=is_direct, origin=origin
            )
        if left:
            done = len(contents) - left
            self._room.add(
                client,
                topic,
                contents[done:],
                bares[done:],
                deliveries[done:],
                full,
                is_direct=is_direct,
                origin=origin,
            )

    def put(
        self,
        client: PublisherLink,
        topic: str,
        contents: list[bytes],
        bares: list[int],
        deliveries: list[Any],
    ) -> None:
        """
        The same for messages that are here already, such as dead ones, whatever is thought of new ones; none waits for
        room in the log.
        """
        self._take(client, topic, contents, bares, deliveries, waits=False)

    def room_may_have_come(self) -> None:
        """Whoever waits for room in the log, be it that its quota is another: it is tried again."""
        self._room.go_on()

    def close(self) -> None:
        """Whoever waits for room is told nothing more."""
        self._room.close()

    def _offer(self, waiting: WaitingMessages) -> tuple[int, LogFull | None]:
        refused = self._refusal()
        if refused is not None:
            self._not_taken(
                waiting.client, waiting.contents, waiting.deliveries, refused, is_direct=waiting.is_direct
            )
            return 0, None
        return self._take(
            waiting.client,
            waiting.topic,
            waiting.contents,
            waiting.bares,
            waiting.deliveries,
            is_direct=waiting.is_direct,
            origin=waiting.origin,
        )

    def _take(
        self,
        client: PublisherLink,
        topic: str,
        contents: list[bytes],
        bares: list[int],
        deliveries: list[Any],
        *,
        is_direct: bool = False,
        origin: str = "",
        waits: bool = True,
    ) -> tuple[int, LogFull | None]:
        """How many of these messages, the last ones, are to wait for room in the log, and why."""
        while contents:
            publication, taken, refused = self._broker.publications.publish(
                self._now_ms(),
                topic,
                contents,
                bares,
                (client, deliveries),
                is_direct=is_direct,
                origin=origin,
            )
            self._counters.activity += 1
            if publication is not None:
                self._add(publication, origin)
            if taken == len(contents):
                return 0, None
            if publication is not None:
                publication.receipt = (client, deliveries[:taken])
            if waits and isinstance(refused, LogFull) and refused.is_passing and self._room.seconds:
                return len(contents) - taken, refused
            behind = taken + (_refused_count(refused) or len(contents) - taken)
            self._not_taken(
                client, contents[taken:behind], deliveries[taken:behind], refused, is_direct=is_direct
            )
            contents, bares, deliveries = contents[behind:], bares[behind:], deliveries[behind:]
        return 0, None

    def _not_taken(
        self,
        client: PublisherLink,
        contents: list[bytes],
        deliveries: list[Any],
        refused: Refused | None,
        *,
        is_direct: bool,
    ) -> None:
        client.not_stored(deliveries, refused)
        if is_direct:
            self._counters.direct_dropped_messages += len(contents)

    def put_what_fits(
        self, topic: str, contents: list[bytes], bares: list[int]
    ) -> tuple[int, Refused | None]:
        """
        Publish messages of one topic for which nobody waits, from the first on, as many as are taken now. They are
        committed with what else is ordered in this turn of the loop.

        Returns:
            How many that is, and why no more; None there: nobody takes messages of this topic.
        """
        refused = self._refusal()
        if refused is None and self._room:
            refused = Refused(ErrorCode.RESOURCE_LIMIT, "others wait for room in the replay log")
        if refused is not None:
            return 0, refused
        publication, taken, refused = self._broker.publications.publish(
            self._now_ms(), topic, contents, bares, (NOBODY, ())
        )
        if publication is not None:
            self._add(publication, "")
        return taken, refused

    def _add(self, publication: Publication, origin: str) -> None:
        self._committer.add(publication)
        if self._tracing is not None:
            self._tracing.received(publication.rows)
        if self._origins.watchers:
            rows = publication.rows
            self._origins.add(rows[0][ID], rows[-1][ID] + 1, origin)

    # --- transactions ---------------------------------------------------------------------------------------------

    def commit_transaction(
        self,
        staged: Iterable[Staged],
        acknowledged: Iterable[tuple[Flow, list[int]]],
        origin: str,
        then: Callable[[WriteFailed | None], None],
    ) -> None:
        """
        Publish messages and settle deliveries as one.

        Args:
            acknowledged: Flows, and ids that are unsettled on them.
            origin: As for ``publish``.
            then: Called when all of it is durable, or with the error when nothing is.

        Raises:
            Refused: ROLLED_BACK, a message is not taken; nothing has happened.
        """
        staged = list(staged)
        refused = self._refusal() if staged else None
        if refused is not None:
            raise Refused(ErrorCode.ROLLED_BACK, f"rolled back: {refused.text}")
        # First, so that a message may take the room of one that it answers.
        settlements = [self._broker.settlements.begin(flow, ids) for flow, ids in acknowledged]
        publications: list[Publication] = []
        try:
            for topic, group in groupby(staged, key=lambda message: message.topic):
                publications.append(self._publish_staged(topic, list(group), origin))
        except Refused:
            self._broker.publications.withdraw(publications)
            for settlement in settlements:
                self._committer.commit(settlement.counts)
                self._committer.commit(self._broker.settlements.failed(settlement))
            raise
        for publication in publications:
            self._add(publication, origin)
        self._counters.activity += 1
        self._committer.commit(
            [effect for settlement in settlements for effect in settlement.effects],
            lambda error: self._transaction_committed(settlements, error, then),
        )

    def _publish_staged(self, topic: str, messages: list[Staged], origin: str) -> Publication:
        contents, bares = [m.content for m in messages], [m.bare for m in messages]
        publication, taken, refused = self._broker.publications.publish(
            self._now_ms(), topic, contents, bares, (NOBODY, ()), origin=origin
        )
        if publication is not None and taken == len(messages):
            return publication
        if publication is not None:
            self._broker.publications.withdraw([publication])
        why = "nobody takes messages of this topic any more" if refused is None else refused.text
        raise Refused(ErrorCode.ROLLED_BACK, f"rolled back, as a message to {topic!r} is not taken: {why}")

    def _transaction_committed(
        self,
        settlements: list[PendingSettlement],
        error: WriteFailed | None,
        then: Callable[[WriteFailed | None], None],
    ) -> None:
        for settlement in settlements:
            if error is None:
                self._consumers.settled_by_transaction(settlement)
            else:
                self._committer.commit(self._broker.settlements.failed(settlement))
        then(error)
        for settlement in settlements:
            self._consumers.deliver(settlement.endpoint)


def _refused_count(refused: Refused | None) -> int:
    """How many messages, one behind the other, are refused for what they are themselves; 0 for all that are left."""
    if isinstance(refused, TooLarge):
        return refused.count
    return int(isinstance(refused, LogFull) and refused.is_too_large)
