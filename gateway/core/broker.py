"""
The broker of one Message VPN: its endpoints, routing, ids and times, and the commands that change them.

Commands return the effects that must be durable before a peer is told. The caller commits them, and then calls the
broker again with the result. ``publications`` handles publishing. Ids are integers that rise in publish order over all
topics of a Message VPN. Arrival times never fall from one id to the next, so that a date is found by binary search.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from amqp_ext.message.fields import HIGHEST, LOWEST
from amqp_ext.topics import TopicPattern
from gateway.core.dedup import Deduplication
from gateway.core.effects import (
    NO_VALUES,
    AddReferences,
    DeleteEndpoint,
    Effect,
    ForgetIds,
    StoredCursor,
    StoredEndpoint,
    StoredRoute,
)
from gateway.core.endpoint.backlog import Backlog, DelayedMessages
from gateway.core.endpoint.cursor import Cursor
from gateway.core.endpoint.endpoint import FLOW_QUANTUM, Endpoint
from gateway.core.endpoint.last_values import LastValues
from gateway.core.endpoint.settings import EndpointKind, EndpointSettings, Exclusivity
from gateway.core.erasing import Erasing
from gateway.core.errors import ErrorCode, Refused
from gateway.core.log import History, LogPolicy, Points, Retention, RetentionMark
from gateway.core.model import CONTENT, ID, WHOLE, LogState, Point, ReplayRecord, Row
from gateway.core.publications import Publications
from gateway.core.replay.commands import ReplayCommands
from gateway.core.replay.records import ReplayRecords
from gateway.core.replay.starts import LogFacts
from gateway.core.replay.states import Replay
from gateway.core.router import BacklogCounts, Router, RouteTable
from gateway.core.settlements import Settlements
from gateway.core.trimming import Trimming


class Broker:
    def __init__(
        self,
        log: LogState,
        policy: LogPolicy,
        *,
        window: int,
        create_queues: bool,
        flow_quantum: int = FLOW_QUANTUM,
    ) -> None:
        """
        Args:
            window: How many ready ids of an endpoint are kept in memory.
            create_queues: Whether queues are created on first use.
            flow_quantum: Messages that a consumer gets before the next consumer's turn.
        """
        self.log = log
        self.policy = replace(policy)
        self.create_queues = create_queues
        self.endpoints: dict[str, Endpoint] = {}
        """By name."""
        self.dead_message_queues: Counter[str] = Counter()
        """By name: for how many endpoints a queue takes the dead messages; only queues for which there is one."""
        self._window = window
        self._flow_quantum = flow_quantum
        self._by_number: dict[int, Endpoint] = {}
        self._next_number = 1
        self._routes = RouteTable()
        self.history = History(log)
        self.points = Points(self.history, self.policy)
        self.retention = Retention(self.history)
        self.retention.configure(policy.retention)
        self.router = Router(self.endpoints, self.policy.takes, self._routes)
        self.counts = BacklogCounts(log)
        self.settlements = Settlements(log)
        self.trimming = Trimming(
            self.policy, self.history, self.retention, self.endpoints, self._routes, self.settlements
        )
        self.erasing = Erasing(log, self.endpoints, self._routes)
        self.dedup = Deduplication()
        self.publications = Publications(
            log, self.policy, self.retention, self.router, self.counts, self.dedup, self.trimming
        )
        self.replay_records = ReplayRecords()
        self.replay_commands = ReplayCommands(
            log, self.policy, self.endpoints, self.router, self.publications, self.take_number
        )

    # --- recovery ---------------------------------------------------------------------------------------------

    def restore(
        self,
        stored: Iterable[StoredEndpoint],
        routes: Sequence[StoredRoute],
        replays: Mapping[int, StoredCursor],
        next_number: int,
        points: Iterable[Point] = (),
        records: Iterable[ReplayRecord] = (),
        retention: Iterable[RetentionMark] = (),
    ) -> None:
        """
        Take over the state in the store.

        Args:
            replays: The cursors of replays, by number.
            next_number: Higher than every number ever used.
        """
        self.points.restore(points)
        self.replay_records.restore(records)
        self.retention.restore(retention)
        for found in stored:
            self._restore(found, replays)
        self._next_number = max(self._next_number, next_number)
        self._routes.restore(routes, self._by_number)
        for endpoint in self.endpoints.values():
            endpoint.catch_up()
            endpoint.wake()

    def _restore(self, found: StoredEndpoint, replays: Mapping[int, StoredCursor]) -> None:
        definition = found.definition
        parts = {
            part: Cursor(
                kept.floor,
                kept.ranges,
                kept.messages + kept.later_messages,
                kept.size_bytes + kept.later_bytes,
                kept.messages,
                kept.size_bytes,
            )
            for part, kept in found.parts.items()
        }
        endpoint = self._add(
            definition.name,
            EndpointKind(definition.kind),
            EndpointSettings.from_json(definition.settings),
            Backlog(definition.number, definition.cursor, parts),
            Replay.from_json(definition.replay) if definition.replay else None,
        )
        if endpoint.kind is EndpointKind.LAST_VALUE:
            endpoint.values = LastValues(parts[WHOLE].floor + 1, found.values)
            self.trimming.valued[endpoint] = None
        window = self.dedup.windows.get(endpoint.number)
        if window is not None:
            window.restore(found.dedup)
        if any(kept.later_messages for kept in found.parts.values()):
            self.counts.uncounted.append(endpoint)
        for pattern in found.subscriptions:
            endpoint.subscribe(pattern)
            self.router.add(TopicPattern.parse(pattern), endpoint.name)
        replay = endpoint.replay
        if replay is not None:
            kept = replays.get(replay.cursor)
            cursor = Cursor(replay.position - 1) if kept is None else Cursor(kept.floor, kept.ranges)
            if kept is not None:
                endpoint.backlog.put.restore_replay(replay.cursor, cursor)
            position, first_id = cursor.floor + 1, self.log.first_id
            if position < first_id and not replay.is_archived:
                # The endpoint has references to trimmed messages that the replay had read. Trimmed messages that it had
                # not read fail it.
                position = min(replay.position, first_id)
            acknowledged = 0 if kept is None else -kept.messages
            if replay.is_under_way:
                endpoint.backlog.put.live = {
                    one.message_id: one.size_bytes
                    for one in found.references
                    if replay.is_live(one.message_id)
                }
            put_by_replay = len(found.references) - len(endpoint.backlog.put.live)
            replay.resume(self.log.next_id, position, acknowledged, put_by_replay)
        delays = found.delays
        endpoint.backlog.delayed = DelayedMessages(
            delays.messages, delays.size_bytes, delays.next_ms, delays.retries
        )
        for message_id, priority in delays.in_order:
            part = priority if endpoint.settings.priorities else WHOLE
            endpoint.held_up.add(endpoint.ready, {part: (message_id,)})
        if delays.messages:
            self.publications.delayed_on[endpoint] = None
        below = replay.position if replay is not None and replay.is_reading else 0
        for reference in found.references:
            message_id = reference.message_id
            endpoint.refer(
                (message_id,), (reference.priority,), reference.size_bytes, waits=message_id < below
            )
            if reference.attempts:
                endpoint.note_attempts([(message_id, reference.attempts)])

    def _add(
        self,
        name: str,
        kind: EndpointKind,
        settings: EndpointSettings,
        backlog: Backlog,
        replay: Replay | None = None,
    ) -> Endpoint:
        endpoint = Endpoint(
            backlog.number, name, kind, settings, self._window, backlog, self._flow_quantum, replay=replay
        )
        self.endpoints[name] = self._by_number[backlog.number] = endpoint
        self.dedup.configure(backlog.number, settings.dedup_window, settings.dedup_window_ms)
        self.router.cached.clear()
        self._count_dead_message_queue(settings, 1)
        return endpoint

    def _count_dead_message_queue(self, settings: EndpointSettings, more: int) -> None:
        name, counts = settings.dead_message_queue, self.dead_message_queues
        if name:
            counts[name] += more
            if not counts[name]:
                del counts[name]

    def take_number(self) -> int:
        """Take the next number for an endpoint or a cursor."""
        number = self._next_number
        self._next_number += 1
        return number

    # --- endpoints --------------------------------------------------------------------------------------------

    def create(
        self, name: str, kind: EndpointKind, settings: EndpointSettings, subscriptions: Sequence[str] = ()
    ) -> tuple[Endpoint, list[Effect]]:
        """
        Create an endpoint.

        Raises:
            Refused: ALREADY_EXISTS, the name is taken.
        """
        if name in self.endpoints:
            raise Refused(ErrorCode.ALREADY_EXISTS, f"an endpoint named {name!r} exists already")
        patterns = [TopicPattern.parse(pattern) for pattern in subscriptions]
        is_valued = kind is EndpointKind.LAST_VALUE
        floor = (self._oldest_id if is_valued else self.log.unused_id) - 1
        number, cursor_number = self.take_number(), self.take_number()
        parts = range(LOWEST, HIGHEST + 1) if settings.priorities else (WHOLE,)
        backlog = Backlog(number, cursor_number, {part: Cursor(floor) for part in parts})
        endpoint = self._add(name, kind, settings, backlog)
        if is_valued:
            endpoint.values = LastValues(floor + 1, NO_VALUES)
            self.trimming.valued[endpoint] = None
        endpoint.wake()
        effects: list[Effect] = [*backlog.open_effects(floor), endpoint.definition()]
        for text, pattern in zip(subscriptions, patterns, strict=True):
            self.router.add(pattern, name)
            effects.append(endpoint.subscribe(text))
        return endpoint, effects

    @property
    def _oldest_id(self) -> int:
        """The first id that stays in the log once all pending trims are committed."""
        return max(self.log.first_id, self.trimming.below, 1)

    def queue_for(
        self,
        name: str,
        *,
        kind: EndpointKind | None = None,
        exclusive: Exclusivity | None = None,
        may_create: bool = True,
    ) -> tuple[Endpoint, list[Effect]]:
        """
        The queue or stream of this name, created on first use.

        Raises:
            Refused: NOT_FOUND where it may not be created; PRECONDITION_FAILED when ``kind`` or ``exclusive``
                contradict the existing queue, naming both values; REPLAY_DISABLED, it would be a stream and there is no
                log.
        """
        endpoint = self.endpoints.get(name)
        if endpoint is None:
            if name.startswith("#"):
                raise Refused(
                    ErrorCode.NOT_FOUND, f"there is no temporary queue {name!r}; it may have been deleted"
                )
            if not (may_create and self.create_queues):
                raise Refused(
                    ErrorCode.NOT_FOUND,
                    f"there is no queue {name!r}, and queues are not created on first use",
                )
            if kind is EndpointKind.LAST_VALUE:
                raise Refused(
                    ErrorCode.NOT_FOUND,
                    f"there is no queue {name!r}, and only an administrator can create a last-value queue",
                )
            if kind is EndpointKind.STREAM:
                self.policy.check_can_be_viewed()
            return self.create(
                name,
                kind or EndpointKind.QUEUE,
                EndpointSettings(exclusive=exclusive or Exclusivity.NONE),
            )
        if endpoint.kind is EndpointKind.TOPIC_ENDPOINT:
            raise Refused(ErrorCode.NOT_FOUND, f"{name!r} is a {endpoint.kind.value}, not a queue")
        if kind is not None and kind is not endpoint.kind:
            raise Refused(
                ErrorCode.PRECONDITION_FAILED,
                f"queue {name!r} has kind={endpoint.kind.value}, but the attach has kind={kind.value}",
            )
        if exclusive is not None and exclusive is not endpoint.settings.exclusive:
            raise Refused(
                ErrorCode.PRECONDITION_FAILED,
                f"queue {name!r} has exclusive={endpoint.settings.exclusive.value}, but the attach has "
                f"exclusive={exclusive.value}",
            )
        return endpoint, []

    def delete(self, endpoint: Endpoint) -> list[Effect]:
        """Delete the endpoint, its subscriptions and its messages."""
        del self.endpoints[endpoint.name]
        del self._by_number[endpoint.number]
        self.publications.deleted(endpoint)
        self.trimming.valued.pop(endpoint, None)
        self.dedup.configure(endpoint.number, 0, 0)
        self._count_dead_message_queue(endpoint.settings, -1)
        self.router.remove_all(endpoint.name)
        self._routes.remove_endpoint(endpoint)
        return [DeleteEndpoint(endpoint.number), *endpoint.delete(self.log.unused_id - 1)]

    def set_subscriptions(self, endpoint: Endpoint, subscriptions: Collection[str]) -> list[Effect]:
        """Replace the endpoint's subscriptions; its messages stay."""
        patterns = {text: TopicPattern.parse(text) for text in subscriptions}
        effects: list[Effect] = []
        for text in [text for text in endpoint.subscriptions if text not in patterns]:
            self.router.remove(TopicPattern.parse(text), endpoint.name)
            effects.append(endpoint.unsubscribe(text))
        for text, pattern in patterns.items():
            if text not in endpoint.subscriptions:
                self.router.add(pattern, endpoint.name)
                effects.append(endpoint.subscribe(text))
        if effects and endpoint.values is not None:
            first = max(self._oldest_id, endpoint.settings.purged_below)
            effects.append(endpoint.values.read_anew(endpoint.cursor_number, first))
        return effects

    def purge(self, endpoint: Endpoint) -> tuple[int, list[Effect]]:
        """
        Drop all messages of a queue or topic endpoint.

        Returns:
            How many messages were dropped, and the effects. Messages that are not committed yet are dropped, too;
            ``Backlog.take_dropped_on_way`` counts them once they are.

        Raises:
            Refused: PRECONDITION_FAILED, a replay is under way.
        """
        replay = endpoint.replay
        if replay is not None and replay.is_under_way:
            raise Refused(
                ErrorCode.PRECONDITION_FAILED,
                f"a replay of {endpoint.name!r} is {replay.state.value}; cancel it first",
            )
        count = endpoint.depth + endpoint.backlog.delayed.messages
        effects = endpoint.empty(self.take_number(), self.log.unused_id - 1)
        self.publications.emptied(endpoint)
        return count, [*effects, endpoint.definition()]

    def purge_stream(self, endpoint: Endpoint) -> list[Effect]:
        """Take all committed messages out of a stream's view; the log and its other readers keep them."""
        log = self.log
        effects: list[Effect] = []
        if endpoint.values is not None:
            effects = endpoint.empty(self.take_number(), log.unused_id - 1)
            self.publications.emptied(endpoint)
        # As with trimming, other messages of that millisecond may follow: nothing is missing from the next one on.
        purged = replace(endpoint.settings, purged_below=log.next_id, purged_ms=log.last_time_ms + 1)
        return [*effects, endpoint.change_settings(purged)]

    def change_settings(self, endpoint: Endpoint, settings: EndpointSettings) -> list[Effect]:
        """Change an endpoint's settings; its messages stay."""
        self.router.cached.clear()
        self._count_dead_message_queue(endpoint.settings, -1)
        self._count_dead_message_queue(settings, 1)
        is_keyed_anew = endpoint.values is not None and settings.value_key != endpoint.settings.value_key
        effects: list[Effect] = [endpoint.change_settings(settings)]
        if is_keyed_anew:
            floor = max(self._oldest_id, settings.purged_below) - 1
            effects = [*endpoint.empty(self.take_number(), floor), endpoint.definition()]
        if self.dedup.configure(endpoint.number, settings.dedup_window, settings.dedup_window_ms):
            effects.append(ForgetIds(endpoint.number))
        endpoint.wake()
        return effects

    # --- copies -------------------------------------------------------------------------------------------------

    def check_copy(self, endpoint: Endpoint) -> None:
        """
        Check that a message of the log can be put on the endpoint.

        Raises:
            Refused: NOT_ALLOWED for a stream, REPLAY_DISABLED, PRECONDITION_FAILED while a replay is under way.
        """
        if endpoint.kind.is_view:
            raise Refused(
                ErrorCode.NOT_ALLOWED,
                f"{endpoint.name!r} is a {endpoint.kind.value}: it shows the log, and cannot hold copies",
            )
        self.policy.check_reads("there is nothing to copy from")
        if endpoint.replay is not None and endpoint.replay.is_under_way:
            raise Refused(
                ErrorCode.PRECONDITION_FAILED,
                f"a replay of {endpoint.name!r} is under way; copy when it is complete, or cancel it first",
            )

    def begin_copy(self, endpoint: Endpoint, row: Row) -> AddReferences:
        """
        Put a logged message on an endpoint that does not have it, without a replay. The message takes its place by its
        id, as every message does. A reference puts it on the endpoint, because no route does or because the endpoint's
        cursor has passed it. The caller calls ``Endpoint.end_copy`` once the reference is committed or has failed.

        Raises:
            Refused: As in ``check_copy``; START_MESSAGE_UNAVAILABLE, the message was trimmed; RESOURCE_LIMIT, the
                endpoint is at its quota.
        """
        self.check_copy(endpoint)
        settings = endpoint.settings
        if row[ID] < max(self.trimming.below, self.log.first_id) or self.retention.is_gone(row):
            raise Refused(ErrorCode.START_MESSAGE_UNAVAILABLE, f"message {row[ID]} was trimmed from the log")
        if not endpoint.backlog.room_for([row[CONTENT]], settings.quota_messages, settings.quota_bytes):
            raise Refused(
                ErrorCode.RESOURCE_LIMIT,
                f"{endpoint.name!r} is at its quota; consume from it or raise the quota",
            )
        return endpoint.begin_copy(row)

    # --- the log ------------------------------------------------------------------------------------------------

    def reconfigure(self, policy: LogPolicy, *, create_queues: bool) -> bool:
        """Take over a changed configuration. Return whether the retention rules have changed."""
        self.policy.become(policy)
        self.create_queues = create_queues
        self.router.cached.clear()
        return self.retention.configure(policy.retention)

    def log_facts(self, endpoint: Endpoint | None = None, patterns: Sequence[str] = ()) -> LogFacts:
        """Facts of the log and its archive for these topics (empty: all), as seen by a stream if one is given."""
        shown = endpoint.settings if endpoint is not None else EndpointSettings()
        log, history = self.log, self.history
        return LogFacts(
            self.policy.reads,
            log.generation,
            max(history.first_id, shown.purged_below),
            log.next_id,
            max(history.floor_ms, shown.purged_ms),
            self.points,
            log.first_id,
            log.floor_ms,
            self.retention.taken_from(patterns),
            history.says,
        )
