"""
Publishing to a Message VPN: messages from links as they come, and those of a client's transaction, all or nothing.

Invariant of a transaction: between its first check and the hand-over to the committer nothing else runs, and one batch
is one transaction of the store. Ids are given out here, so publish order is commit order.

A burst can outrun trimming, which advances commit by commit. Messages beyond the log's quota wait for room
(``LogRoom``): unsettled, in order, and counted as uncommitted content, so that beyond a bound nothing more is read from
publishers. If no room comes for some seconds, the first message that waits is refused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Final, cast

from amqp_ext.addresses.address import topic_endpoint_of_topic
from amqp_ext.codec import CodecError
from amqp_ext.message.fields import DeliveryTimeError, delivery_times, publisher_ids
from amqp_ext.message.sections import bare_offset
from amqp_ext.topics import check_topic
from gateway.core.effects import Publication
from gateway.core.endpoint.endpoint import Flow
from gateway.core.errors import ErrorCode, Refused
from gateway.core.model import ID
from gateway.core.publications import Origins, TooLarge
from gateway.core.settlements import PendingSettlement
from gateway.core.trimming import LogFull
from gateway.vpn.clients import PublisherLink
from gateway.vpn.consumers import Consumers
from gateway.vpn.feeds.endpoint_feed import Feeds
from gateway.vpn.state import VpnPart, VpnService, VpnState
from store.errors import WriteFailed


@dataclass(frozen=True, slots=True)
class Staged:
    """A message that waits for its transaction's commit."""

    topic: str
    content: bytes
    bare: int
    """Where its bare message begins."""


class _Nobody:
    """The publisher of a transaction's messages: single deliveries need no outcome, the discharge has one for all."""

    def accepted(self, deliveries: Any, *, at_once: bool = False) -> None: ...

    def not_stored(self, deliveries: Any, refused: Refused | None) -> None: ...


NOBODY: Final = _Nobody()


class Publishing(VpnPart):
    """
    Args:
        make_room: Has the log trimmed while publishers wait for room (``LogRoom``).
        refusal: Why no client's message is taken now; None if messages are taken.
    """

    def __init__(
        self,
        state: VpnState,
        consumers: Consumers,
        feeds: Feeds,
        make_room: Callable[[int], None],
        refusal: Callable[[], Refused | None],
    ) -> None:
        super().__init__(state)
        self._consumers = consumers
        self._feeds = feeds
        self._refusal = refusal
        self.origins = Origins()
        self.room = LogRoom(state, make_room, self.take)
        """Publishers that wait for room in the log."""

    def check_topic(self, topic: str) -> str:
        """
        The topic, if it may be published to here.

        Raises:
            amqp_ext.topics.TopicSyntaxError: It is not a valid topic.
            Refused: INVALID_FIELD, it is longer or deeper than this VPN takes; NOT_ALLOWED, it is a topic endpoint's
                own.
        """
        check_topic(topic)
        if topic_endpoint_of_topic(topic) is not None:
            raise Refused(
                ErrorCode.NOT_ALLOWED,
                f"{topic[:80]!r} is for the gateway only: to reach a topic endpoint, publish to one of its "
                "topics",
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
        Publish messages of one topic that came in on a link; the link is told the outcome of each delivery.

        Args:
            contents: Messages as received.
            bares: Where each one's bare message begins.
            deliveries: One for each of ``contents``; empty if they came settled (``is_direct``).
            origin: The publisher's container-id, see ``Origins``.
        """
        arrived = ArrivedMessages(client, topic, contents, bares, deliveries, is_direct, origin)
        left, full = len(contents), None
        if not (self.room and self._refusal() is None and self.room.is_behind(client, topic)):
            left, full = self.take(arrived)
        if left:
            self.room.add(arrived.part(len(contents) - left), full)

    def take(self, arrived: ArrivedMessages, *, is_new: bool = True) -> tuple[int, LogFull | None]:
        """
        The same for messages that need not wait behind others.

        Args:
            is_new: They come from a client: they may be refused, may wait for room in the log, and may say when they
                are to be delivered. If not, the gateway has them already, such as dead letters: without room, they are
                not taken.

        Returns:
            How many of the last ones are to wait, and why.
        """
        unwanted = self._refusal() if is_new else None
        if unwanted is not None:
            self._not_taken(arrived, unwanted)
            return 0, None
        # The time that the messages are stamped with, so that a later look gives the same result.
        now_ms = max(self._now_ms(), self._broker.log.last_time_ms)
        times = delivery_times(arrived.contents, arrived.bares, now_ms) if is_new else None
        if times is None:
            return self._take(arrived, now_ms, is_new=is_new)
        different = set(times)
        if 0 not in different and set(map(type, different)) == {int}:
            return self._take(arrived, now_ms, cast("list[int]", times))
        done = 0
        for kind, run in groupby(times, key=_kind_of_time):
            said = list(run)
            part = arrived.part(done, done + len(said))
            done += len(said)
            if kind is DeliveryTimeError:
                self._not_taken(part, Refused(ErrorCode.INVALID_FIELD, str(said[0])))
                continue
            left, full = self._take(part, now_ms, [time for time in said if isinstance(time, int) and time])
            if left:
                return len(times) - done + left, full
        return 0, None

    def _take(
        self, arrived: ArrivedMessages, now_ms: int, due_ms: Sequence[int] = (), *, is_new: bool = True
    ) -> tuple[int, LogFull | None]:
        publications = self._broker.publications
        # What the gateway publishes itself, such as a dead letter, may repeat a known id: it is no duplicate.
        if not (is_new and self._broker.dedup.windows and publications.has_window(arrived.topic)):
            return self._store(arrived, now_ms, due_ms, is_new=is_new)
        ids = publisher_ids(arrived.contents, arrived.bares)
        sifted = publications.sift(arrived.topic, ids, now_ms)
        if sifted is None:
            return self._store(arrived, now_ms, due_ms, ids)
        new, count = sifted.new, len(ids)
        left, full = 0, None
        if new:
            left, full = self._store(
                arrived.of(new),
                now_ms,
                [due_ms[place] for place in new] if due_ms else (),
                [ids[p] for p in new],
            )
        stop = new[-left] if left else count
        # Of two messages with the same id, the second gets the outcome of the first, which is being committed now.
        again = publications.sift(arrived.topic, [ids[place] for place in sifted.again], now_ms)
        stored, on_way, lost = list(sifted.stored), list(sifted.on_way), []
        if again is not None:
            stored += [sifted.again[k] for k in again.stored]
            on_way += [(sifted.again[k], publication) for k, publication in again.on_way]
            lost = [sifted.again[k] for k in (*again.new, *again.again)]
        elif sifted.again:
            lost = sifted.again
        self._tell_duplicates(arrived, stop, stored, on_way, lost)
        return count - stop, full

    def _tell_duplicates(
        self,
        arrived: ArrivedMessages,
        stop: int,
        stored: Iterable[int],
        on_way: Iterable[tuple[int, Publication]],
        lost: Iterable[int],
    ) -> None:
        """
        Accept the duplicates among messages that came together, once their originals are durable.

        Args:
            stop: Messages from this place on wait, and are looked at again.
            stored: Places of duplicates whose originals are durable.
            on_way: Places of duplicates whose originals are being committed, each with the publication of that one.
            lost: Places of duplicates whose originals were not taken.
        """
        told = [place for place in stored if place < stop]
        duplicates = len(told)
        if told:
            arrived.client.accepted(arrived.of(told).deliveries)
        for place, publication in on_way:
            if place < stop:
                duplicates += 1
                if publication.dedup is not None and not arrived.is_direct:
                    publication.dedup.echoes.append((arrived.client, [arrived.deliveries[place]]))
        refused = [place for place in lost if place < stop]
        if refused:
            reason = "the message with the same id just before it was not accepted"
            self._not_taken(arrived.of(refused), Refused(ErrorCode.RESOURCE_LIMIT, reason))
        self._broker.publications.count_duplicates(arrived.topic, duplicates)
        self._counters.duplicate_messages += duplicates

    def _store(
        self,
        arrived: ArrivedMessages,
        now_ms: int,
        due_ms: Sequence[int] = (),
        ids: Sequence[bytes] = (),
        *,
        is_new: bool = True,
    ) -> tuple[int, LogFull | None]:
        """Take messages that are no duplicates; ``ids`` as in ``Publications.publish``."""
        client, contents, bares = arrived.client, arrived.contents, arrived.bares
        deliveries = arrived.deliveries
        while contents:
            publication, taken, refused = self._broker.publications.publish(
                now_ms,
                arrived.topic,
                contents,
                bares,
                (client, deliveries),
                is_direct=arrived.is_direct,
                origin=arrived.origin,
                due_ms=due_ms,
                ids=ids,
            )
            self._counters.activity += 1
            if publication is not None:
                self._add(publication, arrived.origin)
            if taken == len(contents):
                return 0, None
            if publication is not None:
                publication.receipt = (client, deliveries[:taken])
            if is_new and isinstance(refused, LogFull) and refused.is_passing and self.room.seconds:
                return len(contents) - taken, refused
            behind = taken + (_refused_count(refused) or len(contents) - taken)
            done = len(arrived.contents) - len(contents)
            self._not_taken(arrived.part(done + taken, done + behind), refused)
            contents, bares, deliveries = contents[behind:], bares[behind:], deliveries[behind:]
            due_ms, ids = due_ms[behind:], ids[behind:]
        return 0, None

    def _not_taken(self, arrived: ArrivedMessages, refused: Refused | None) -> None:
        arrived.client.not_stored(arrived.deliveries, refused)
        if arrived.is_direct:
            self._counters.direct_dropped_messages += len(arrived.contents)

    def put_what_fits(
        self, topic: str, contents: list[bytes], bares: list[int]
    ) -> tuple[int, Refused | None]:
        """
        Publish messages of one topic, from the first on, as many as are taken now; no publisher is told. They are
        committed with everything else that is ordered in this turn of the loop.

        Returns:
            How many were taken, and why no more; None as the reason says that nothing takes messages of this topic.
        """
        refused = self._refusal()
        if refused is None and self.room:
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
        if self.origins.watchers:
            rows = publication.rows
            self.origins.add(rows[0][ID], rows[-1][ID] + 1, origin)

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
        # First, so that a message may take the room of one that the transaction consumes.
        settlements = [self._broker.settlements.begin(flow, ids) for flow, ids in acknowledged]
        publications: list[Publication] = []
        try:
            now_ms = max(self._now_ms(), self._broker.log.last_time_ms)
            for topic, group in groupby(staged, key=lambda message: message.topic):
                for due_ms, messages in _by_time(list(group), now_ms):
                    publications += self._publish_staged(
                        topic, now_ms, due_ms, messages, origin, publications
                    )
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

    def _publish_staged(
        self,
        topic: str,
        now_ms: int,
        due_ms: Sequence[int],
        messages: list[Staged],
        origin: str,
        before: Collection[Publication],
    ) -> list[Publication]:
        """The publication of a transaction's messages of one topic, if they are not all duplicates."""
        contents, bares = [m.content for m in messages], [m.bare for m in messages]
        ids: Sequence[bytes] = ()
        if self._broker.dedup.windows and self._broker.publications.has_window(topic):
            ids = publisher_ids(contents, bares)
            sifted = self._broker.publications.sift(topic, ids, now_ms)
            if sifted is not None:
                if any(publication not in before for _, publication in sifted.on_way):
                    # The original may still fail, and its duplicate in this transaction would be lost with it.
                    raise Refused(
                        ErrorCode.ROLLED_BACK,
                        f"rolled back: a message to {topic!r} has the same id as another message that is "
                        "being stored; try again",
                    )
                new = sifted.new
                duplicates = len(messages) - len(new)
                self._broker.publications.count_duplicates(topic, duplicates)
                self._counters.duplicate_messages += duplicates
                if not new:
                    return []
                messages = [messages[place] for place in new]
                contents, bares, ids = (
                    [contents[p] for p in new],
                    [bares[p] for p in new],
                    [ids[p] for p in new],
                )
                due_ms = [due_ms[place] for place in new] if due_ms else ()
        publication, taken, refused = self._broker.publications.publish(
            now_ms, topic, contents, bares, (NOBODY, ()), origin=origin, due_ms=due_ms, ids=ids
        )
        if publication is not None and taken == len(messages):
            return [publication]
        if publication is not None:
            self._broker.publications.withdraw([publication])
        why = "no endpoint or log takes messages of this topic any more" if refused is None else refused.text
        raise Refused(ErrorCode.ROLLED_BACK, f"rolled back: a message to {topic!r} is not accepted: {why}")

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
                self._consumers.not_settled_by_transaction(settlement)
        then(error)
        for settlement in settlements:
            self._feeds.deliver(settlement.endpoint)


def _by_time(messages: list[Staged], now_ms: int) -> Iterator[tuple[Sequence[int], list[Staged]]]:
    """
    Messages of one topic in order, in runs of delayed and of other ones: (when they are to be delivered, messages).

    Raises:
        Refused: ROLLED_BACK, a message has an invalid delivery time.
    """
    contents, bares = [m.content for m in messages], [m.bare for m in messages]
    times = delivery_times(contents, bares, now_ms)
    if times is None:
        yield (), messages
        return
    done = 0
    for kind, run in groupby(times, key=_kind_of_time):
        said = list(run)
        if kind is DeliveryTimeError:
            raise Refused(ErrorCode.ROLLED_BACK, f"rolled back: {said[0]}")
        part = messages[done : done + len(said)]
        done += len(said)
        yield [time for time in said if isinstance(time, int) and time], part


def _kind_of_time(time: int | DeliveryTimeError) -> Hashable:
    """The key of a run of messages: those with an invalid delivery time, delayed ones, and all others."""
    if isinstance(time, DeliveryTimeError):
        return DeliveryTimeError
    return time > 0


@dataclass(slots=True)
class ArrivedMessages:
    """Messages of one topic that came together on a link."""

    client: PublisherLink
    topic: str
    contents: list[bytes]
    bares: list[int]
    deliveries: list[Any]
    is_direct: bool = False
    """They came settled."""
    origin: str = ""
    since: float = 0.0
    """Since when they wait for room in the log, by the loop's clock."""

    def of(self, places: Iterable[int]) -> ArrivedMessages:
        """The messages at some places."""
        places = list(places)
        return replace(
            self,
            contents=[self.contents[place] for place in places],
            bares=[self.bares[place] for place in places],
            deliveries=[] if self.is_direct else [self.deliveries[place] for place in places],
        )

    def part(self, start: int, stop: int | None = None) -> ArrivedMessages:
        """The messages from one place up to another."""
        return replace(
            self,
            contents=self.contents[start:stop],
            bares=self.bares[start:stop],
            deliveries=self.deliveries[start:stop],
        )


class LogRoom(VpnService):
    """
    Args:
        make_room: Has the log trimmed, for a message of so many bytes; 0: no message waits.
        offer: Publishes waiting messages as far as there is room. Returns how many of the last ones still wait, and
            why, with the bytes that the first of these needs.
    """

    def __init__(
        self,
        state: VpnState,
        make_room: Callable[[int], None],
        offer: Callable[[ArrivedMessages], tuple[int, LogFull | None]],
    ) -> None:
        super().__init__(state)
        self._make_room = make_room
        self._offer = offer
        self._line: deque[ArrivedMessages] = deque()
        self._by_client: dict[PublisherLink, int] = {}
        self._full: LogFull | None = None
        """Why the first one waits."""
        self._moved = 0.0
        """When another message last became the first one, by the loop's clock."""
        self._is_offering = False

    def __bool__(self) -> bool:
        """Whether messages wait."""
        return bool(self._line)

    @property
    def seconds(self) -> float:
        """How long a message waits if no room comes; 0: it does not."""
        return self._settings.vpn.replay_log.wait_for_room_seconds

    def is_behind(self, client: PublisherLink, topic: str) -> bool:
        """Whether new messages must wait behind others: some are of the same link, or the log takes the topic, too."""
        return client in self._by_client or self._broker.policy.takes(topic)

    def add(self, waiting: ArrivedMessages, full: LogFull | None) -> None:
        """
        Let messages wait, behind all others.

        Args:
            full: Why; needed if no others wait.
        """
        waiting.since = now = self._loop.time()
        self._line.append(waiting)
        self._by_client[waiting.client] = self._by_client.get(waiting.client, 0) + 1
        self._committer.hold(sum(map(len, waiting.contents)))
        if len(self._line) == 1:
            self._moved, self._full = now, full
            self._wait()

    def go_on(self) -> None:
        """Offer the waiting messages again: there may be room, or it is certain that there will be none."""
        if self._is_offering:
            return
        self._is_offering = True
        try:
            while self._line:
                waiting = self._line[0]
                count, size = len(waiting.contents), sum(map(len, waiting.contents))
                left, self._full = self._offer(waiting)
                if left:
                    self._line[0] = waiting.part(count - left)
                    size -= sum(map(len, self._line[0].contents))
                else:
                    self._leave()
                if left < count:
                    self._moved = self._loop.time()
                self._committer.let_go(size)
                if left:
                    break
        finally:
            self._is_offering = False
        self._wait()

    def _leave(self) -> None:
        client = self._line.popleft().client
        self._by_client[client] -= 1
        if not self._by_client[client]:
            del self._by_client[client]

    def _wait(self) -> None:
        """Have room made for the first one."""
        if self._timer is not None:
            self._timer.cancel()
        if not self._line or self._full is None:
            self._make_room(0)
            return
        due = max(self._moved, self._line[0].since) + self.seconds
        self._after(max(due - self._loop.time(), 0.0), self._over)
        self._make_room(self._full.size_bytes)

    def _over(self) -> None:
        """The time to wait is over, and no room has come: refuse the messages whose time it is."""
        now, full = self._loop.time(), self._full
        while self._line and full is not None and self.seconds <= now - max(self._moved, self._line[0].since):
            waiting = self._line[0]
            self._leave()
            self._committer.let_go(sum(map(len, waiting.contents)))
            waiting.client.not_stored(waiting.deliveries, full)
        self.go_on()


def bare_offset_of(content: bytes, max_annotations_bytes: int) -> int:
    """
    Where the bare message begins in a message from a publisher.

    Raises:
        Refused: DECODE_ERROR, it is no AMQP message; RESOURCE_LIMIT, the sections before it are too large.
    """
    try:
        bare = bare_offset(content)
    except CodecError as error:
        raise Refused(ErrorCode.DECODE_ERROR, f"this is not an AMQP message: {error}") from error
    if bare > max_annotations_bytes:
        raise Refused(
            ErrorCode.RESOURCE_LIMIT,
            f"a message with {bare} bytes of header and annotations; at most {max_annotations_bytes} are "
            "accepted (max_annotations_bytes)",
        )
    return bare


def _refused_count(refused: Refused | None) -> int:
    """How many successive messages are refused for their own size; 0 if the reason is that of all that are left."""
    if isinstance(refused, TooLarge):
        return refused.count
    return int(isinstance(refused, LogFull) and refused.is_too_large)
