"""
The broker of one Message VPN: endpoints by name, routing by topic, ids and times, and what each command leads to.

Commands return the effects that must be durable before anybody is told; the caller commits them and then comes back
with ``committed``. Ids are one integer per VPN, rising in publish order over all topics; arrival times never go back
along them, so that a date is found by binary search.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import repeat
from typing import Any

from amqp_ext.message.priority import priorities_of
from amqp_ext.topics import TopicPattern
from gateway.core.effects import (
    AddReferences,
    DeleteEndpoint,
    Effect,
    Publication,
    Ranked,
    RenumberEndpoint,
    SaveArchived,
    TrimLog,
)
from gateway.core.endpoint.endpoint import FLOW_QUANTUM, Endpoint
from gateway.core.endpoint.settings import EndpointKind, EndpointSettings, Exclusivity
from gateway.core.errors import ErrorCode, Refused
from gateway.core.log.archived import check_trimmable, report_archived
from gateway.core.log.point import Point, check_point_name
from gateway.core.log.points import Points
from gateway.core.log.policy import LogPolicy
from gateway.core.model import ID, LogState, Row
from gateway.core.recovered import StoredEndpoint
from gateway.core.replay.commands import ReplayCommands
from gateway.core.replay.copy import begin_copy, check_copy
from gateway.core.replay.starts import LogFacts
from gateway.core.replay.states import Replay
from gateway.core.router import Router

TRIM_IDS = 1_000
"""Ids trimmed in one commit: some milliseconds, so that publishers hardly wait for it."""


class TooLarge(Refused):
    """One message, or some in a row, larger than an endpoint takes: those that came behind them are not affected."""

    def __init__(self, endpoint: Endpoint, count: int) -> None:
        limit = endpoint.settings.max_message_bytes
        super().__init__(
            ErrorCode.RESOURCE_LIMIT,
            f"{endpoint.name!r} takes messages of at most {limit} bytes (max_message_bytes)",
            **{"rewind:reason": "endpoint-message-size", "rewind:endpoint": endpoint.name},
        )
        self.count = count


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
            window: Ready ids of an endpoint that are kept in memory.
            create_queues: Whether queues are made on first use.
            flow_quantum: Messages a consumer is given before the next one's turn.
        """
        self.log = log
        self.policy = policy
        self.create_queues = create_queues
        self.endpoints: dict[str, Endpoint] = {}
        self.points = Points(log)
        self.replay_commands = ReplayCommands(self)
        self.next_id = log.next_id
        """The next id to be given out; ``log.next_id`` is one past the last committed."""
        self.trimming_below = 0
        """Ids below this are trimmed, or are about to be: no replay may put them back."""
        self._window = window
        self._flow_quantum = flow_quantum
        self._by_number: dict[int, Endpoint] = {}
        self._next_number = 1
        self._router = Router(self.endpoints, self._is_logged)

    def _is_logged(self, topic: str) -> bool:
        return self.policy.takes(topic)

    # --- recovery ---------------------------------------------------------------------------------------------

    def restore(
        self, stored: Iterable[StoredEndpoint], next_number: int, points: Iterable[Point] = ()
    ) -> None:
        """Take over the endpoints and points that the store kept. ``next_number`` is above every number ever used."""
        self.points.update((point.name, point) for point in points)
        for found in stored:
            definition = found.definition
            endpoint = Endpoint(
                definition.number,
                definition.name,
                EndpointKind(definition.kind),
                EndpointSettings.from_json(definition.settings),
                self._window,
                self._flow_quantum,
                depth=found.depth,
                size_bytes=found.size_bytes,
                stored_up_to=found.newest_id,
                replay=Replay.from_json(definition.replay) if definition.replay else None,
                awaiting_replay=found.awaiting,
            )
            if endpoint.replay is not None:
                endpoint.replay.resume(self.next_id, found.replayed)
            if endpoint.settings.priorities:
                endpoint.ready.note_priorities(found.awaiting, found.awaiting_priorities)
            self._register(endpoint)
            for pattern in found.subscriptions:
                endpoint.subscribe(pattern)
                self._router.add(TopicPattern.parse(pattern), endpoint.name)
        self._next_number = max(self._next_number, next_number)

    def _register(self, endpoint: Endpoint) -> None:
        self.endpoints[endpoint.name] = endpoint
        self._by_number[endpoint.storage_number] = endpoint
        self._router.forget()

    def _take_number(self) -> int:
        number = self._next_number
        self._next_number += 1
        return number

    # --- endpoints --------------------------------------------------------------------------------------------

    def find(self, name: str) -> Endpoint | None:
        return self.endpoints.get(name)

    def by_number(self, number: int) -> Endpoint | None:
        """The endpoint that carries this number now; None when it is gone or was renumbered."""
        return self._by_number.get(number)

    def create(
        self, name: str, kind: EndpointKind, settings: EndpointSettings, subscriptions: Sequence[str] = ()
    ) -> tuple[Endpoint, list[Effect]]:
        """
        Make an endpoint.

        Raises:
            Refused: ALREADY_EXISTS, the name is taken.
        """
        if name in self.endpoints:
            raise Refused(ErrorCode.ALREADY_EXISTS, f"an endpoint named {name!r} exists already")
        patterns = [TopicPattern.parse(pattern) for pattern in subscriptions]
        endpoint = Endpoint(self._take_number(), name, kind, settings, self._window, self._flow_quantum)
        self._register(endpoint)
        effects: list[Effect] = [endpoint.definition()]
        for text, pattern in zip(subscriptions, patterns, strict=True):
            self._router.add(pattern, name)
            effects.append(endpoint.subscribe(text))
        return endpoint, effects

    def queue_for(
        self,
        name: str,
        *,
        kind: EndpointKind | None = None,
        exclusive: Exclusivity | None = None,
        may_create: bool = True,
    ) -> tuple[Endpoint, list[Effect]]:
        """
        The queue or stream of this name, made on first use.

        Raises:
            Refused: NOT_FOUND where it may not be made; PRECONDITION_FAILED when ``kind`` or ``exclusive`` contradict
                what it is, naming both values; REPLAY_DISABLED, it would be a stream and there is no log.
        """
        endpoint = self.endpoints.get(name)
        if endpoint is None:
            if name.startswith("#"):
                raise Refused(ErrorCode.NOT_FOUND, f"there is no temporary queue {name!r}, or no longer")
            if not (may_create and self.create_queues):
                raise Refused(
                    ErrorCode.NOT_FOUND, f"there is no queue {name!r}, and queues are not made on first use"
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
                f"queue {name!r} is kind={endpoint.kind.value}, the attach says kind={kind.value}",
            )
        if exclusive is not None and exclusive is not endpoint.settings.exclusive:
            raise Refused(
                ErrorCode.PRECONDITION_FAILED,
                f"queue {name!r} is exclusive={endpoint.settings.exclusive.value}, "
                f"the attach says exclusive={exclusive.value}",
            )
        return endpoint, []

    def delete(self, endpoint: Endpoint) -> list[Effect]:
        """The endpoint is gone, with its subscriptions and what lay on it."""
        del self.endpoints[endpoint.name]
        del self._by_number[endpoint.storage_number]
        self._router.remove_all(endpoint.name)
        endpoint.delete()
        return [DeleteEndpoint(endpoint.storage_number)]

    def set_subscriptions(self, endpoint: Endpoint, subscriptions: Collection[str]) -> list[Effect]:
        """Make these the endpoint's subscriptions; what lies on it stays."""
        patterns = {text: TopicPattern.parse(text) for text in subscriptions}
        effects: list[Effect] = []
        for text in [text for text in endpoint.subscriptions if text not in patterns]:
            self._router.remove(TopicPattern.parse(text), endpoint.name)
            effects.append(endpoint.unsubscribe(text))
        for text, pattern in patterns.items():
            if text not in endpoint.subscriptions:
                self._router.add(pattern, endpoint.name)
                effects.append(endpoint.subscribe(text))
        return effects

    # --- publishing -------------------------------------------------------------------------------------------

    def publish(
        self,
        now_ms: int,
        topic: str,
        contents: list[bytes],
        bares: list[int],
        receipt: Any,
        *,
        is_direct: bool = False,
        origin: str = "",
    ) -> tuple[Publication | None, int, Refused | None]:
        """
        Take messages of one topic that arrived together.

        Args:
            now_ms: Arrival time; an earlier one than the last is taken as the last.
            contents: Messages as received.
            bares: Where each one's bare message begins.
            receipt: Whatever the caller needs to tell the publisher afterwards; not looked at.
            is_direct: They came settled: kept where they land on an endpoint, logged only if the policy promotes them.
            origin: Whom they came from, for endpoints that do not want their own; empty for nobody.

        Returns:
            The publication to be committed (None when nothing is taken), how many of ``contents``, from the first on,
            it holds, and why the rest was refused: None there means that nobody wanted them (outcome released),
            ``TooLarge`` that some of the rest was, and what is behind that is to be offered again.
        """
        router = self._router
        route = router.cached.get(topic) or router.route(topic)
        if route.is_picky and origin:
            route = route.seen_from(origin)
        endpoints, logged = route.endpoints, route.logged and (not is_direct or self.policy.promote_direct)
        # An endpoint that replays gets live messages from the log later; what the log does not take it gets now.
        numbers = route.live if logged else route.numbers
        if not endpoints and not logged:
            return None, 0, None
        count = len(contents)
        room = count
        refused: Refused | None = None
        for endpoint in endpoints:
            settings = endpoint.settings
            if settings.max_message_bytes:
                fits = _first_larger(contents, settings.max_message_bytes)
                if fits < room:
                    room = fits
                    larger = _first_not_larger(contents, fits, settings.max_message_bytes) - fits
                    refused = TooLarge(endpoint, larger)
            if settings.quota_bytes or settings.quota_messages:
                fits = endpoint.room_for(contents)
                if fits < room:
                    room = fits
                    refused = Refused(
                        ErrorCode.RESOURCE_LIMIT,
                        f"{endpoint.name!r} is at its quota; consume from it or raise the quota",
                        **{"rewind:reason": "endpoint-quota", "rewind:endpoint": endpoint.name},
                    )
        size = sum(map(len, contents))
        log = self.log
        if logged and self.policy.quota_bytes and log.size_bytes + size > self.policy.quota_bytes:
            fits = _fitting(contents, self.policy.quota_bytes - log.size_bytes)
            if fits < room:
                room = fits
                refused = Refused(
                    ErrorCode.RESOURCE_LIMIT,
                    "the replay log is at its quota, and keeps what is not archived: archive it or raise the quota"
                    if self.policy.keep_until_archived and log.archived_id < log.next_id - 1
                    else "the replay log is at its quota; trim it or raise the quota",
                    **{"rewind:reason": "replay-log-quota"},
                )
        if room < count:
            if room == 0:
                return None, 0, refused
            contents = contents[:room]
            size = sum(map(len, contents))
        now_ms = log.last_time_ms = max(now_ms, log.last_time_ms)
        first = self.next_id
        self.next_id = first + room
        held = None if logged else len(numbers)
        rows = list(
            zip(
                range(first, first + room),
                repeat(now_ms),
                repeat(topic),
                bares,
                repeat(held),
                contents,
                strict=False,
            )
        )
        if logged:
            log.size_bytes += size
        for number in numbers:
            self._by_number[number].reserve(room, size)
        ranked = Ranked(route.ranked, priorities_of(contents, bares)) if route.ranked else None
        return Publication(rows, topic, numbers, logged, size, receipt, ranked), room, refused

    def committed(self, publication: Publication) -> list[Endpoint]:
        """
        The publication is durable: its references are ready.

        Returns:
            The endpoints it lies on, each to be looked at for consumers.
        """
        rows = publication.rows
        self.log.next_id = rows[-1][ID] + 1
        touched: list[Endpoint] = []
        if not publication.endpoints:
            return touched
        ids = range(rows[0][ID], rows[-1][ID] + 1)
        priorities = publication.ranked.priorities if publication.ranked is not None else None
        for number in publication.endpoints:
            endpoint = self._by_number.get(number)
            if endpoint is not None and endpoint.add_published(ids, priorities):
                touched.append(endpoint)
        return touched

    def failed(self, publication: Publication) -> None:
        """The commit failed: nobody was told, nothing of it exists."""
        count = len(publication.rows)
        if publication.logged:
            self.log.size_bytes -= publication.size_bytes
        for number in publication.endpoints:
            endpoint = self._by_number.get(number)
            if endpoint is not None:
                endpoint.unreserve(count, publication.size_bytes)

    def withdraw(self, publications: Sequence[Publication]) -> None:
        """The newest publications, in order, are not even to be committed: their ids are given out again."""
        for publication in publications:
            self.failed(publication)
        if publications:
            self.next_id = publications[0].rows[0][ID]

    # --- trimming ---------------------------------------------------------------------------------------------

    @property
    def log_usage(self) -> float:
        """How much of its quota the log uses, 0 to 1 and above; 0 without a quota."""
        return self.log.size_bytes / self.policy.quota_bytes if self.policy.quota_bytes else 0.0

    @property
    def trimmable_below(self) -> int:
        """Ids below this may be trimmed: what is committed, and archived where the log keeps all else."""
        log = self.log
        return min(log.next_id, log.archived_id + 1) if self.policy.keep_until_archived else log.next_id

    @property
    def has_trimmable(self) -> bool:
        """Whether anything could be trimmed now."""
        return max(self.log.first_id, self.trimming_below) < self.trimmable_below

    def trim(self, before_id: int) -> TrimLog | None:
        """
        The next piece of trimming everything below an id away; None when that is done, or when what follows is to be
        kept. Committed messages alone are trimmed. Once it is committed, tell ``trimmed``.
        """
        first = max(self.log.first_id, self.trimming_below)
        stop = min(before_id, self.trimmable_below, first + TRIM_IDS)
        if stop <= first:
            return None
        self.trimming_below = stop
        return TrimLog(first, stop)

    def trimmed(self, effect: TrimLog) -> None:
        """A piece is gone from the log."""
        log = self.log
        log.first_id = max(log.first_id, effect.stop)
        log.size_bytes -= effect.freed_bytes
        if effect.newest_ms:
            # Others of that millisecond may have stayed: from the next on nothing is missing.
            log.floor_ms = max(log.floor_ms, effect.newest_ms + 1)

    def not_trimmed(self, effect: TrimLog) -> None:
        """It failed: these ids are to be tried again from where the log begins."""
        self.trimming_below = effect.first

    def check_trimmable(self, before_id: int) -> None:
        """
        Whether an administrator may have everything below an id trimmed.

        Raises:
            Refused: PRECONDITION_FAILED, not all of it is archived, and the log keeps that.
        """
        check_trimmable(self.log, self.policy, before_id)

    def report_archived(self, last_id: int, generation: int) -> SaveArchived | None:
        """
        An archive holds the log up to an id; None when that was known. Once it is committed, tell ``archive_saved``.

        Raises:
            Refused: LOG_MODIFIED, the archive is of another log; PRECONDITION_FAILED, the log has no such id.
        """
        return report_archived(self.log, last_id, generation)

    def archive_saved(self, effect: SaveArchived) -> None:
        """From now on that much may be trimmed."""
        self.log.archived_id = max(self.log.archived_id, effect.last_id)

    # --- points -------------------------------------------------------------------------------------------------

    def check_point(self, name: str) -> None:
        """
        Whether a point of this name may be made.

        Raises:
            Refused: INVALID_FIELD for a bad name, ALREADY_EXISTS for one that is taken, REPLAY_DISABLED.
        """
        check_point_name(name)
        self.policy.check_reads("there are no points in it")
        self.points.check(name)

    def create_point(
        self, name: str, position: int | None, time_ms: int | None, now_ms: int
    ) -> tuple[Point, list[Effect]]:
        """
        Give a place in the log a name.

        Args:
            position: The first id behind it; None for now: before everything that is published from here on.
            time_ms: When that message arrived; None for now.

        Raises:
            Refused: As ``check_point`` has it.
        """
        self.check_point(name)
        return self.points.create(
            name,
            self.next_id if position is None else position,
            now_ms if time_ms is None else time_ms,
            now_ms,
        )

    # --- copies -------------------------------------------------------------------------------------------------

    def check_copy(self, endpoint: Endpoint) -> None:
        """
        Whether a message of the log can be put on the endpoint.

        Raises:
            Refused: NOT_ALLOWED for a stream, REPLAY_DISABLED, PRECONDITION_FAILED while a replay is under way.
        """
        check_copy(self.policy, endpoint)

    def begin_copy(self, endpoint: Endpoint, row: Row, priority: int) -> AddReferences:
        """
        Put a logged message on an endpoint on which it does not lie; see ``gateway.core.replay.copy``.

        Raises:
            Refused: As ``check_copy`` has it; START_MESSAGE_UNAVAILABLE, it was trimmed; RESOURCE_LIMIT, over the
                quota.
        """
        first_id = max(self.trimming_below, self.log.first_id)
        return begin_copy(self.policy, first_id, endpoint, row, priority)

    # --- what replays ask of it -------------------------------------------------------------------------------

    def renumber(self, endpoint: Endpoint) -> tuple[int, int]:
        """
        The endpoint goes on, empty, under a new number.

        Returns:
            The old number and the new one.
        """
        old, new = endpoint.storage_number, self._take_number()
        del self._by_number[old]
        endpoint.empty(new)
        self._by_number[new] = endpoint
        self.forget_routes()
        return old, new

    def reconfigure(self, policy: LogPolicy, *, create_queues: bool) -> None:
        """Go by these from now on."""
        self.policy = policy
        self.create_queues = create_queues
        self._router.forget()

    def purge(self, endpoint: Endpoint) -> tuple[int, list[Effect]]:
        """
        Drop everything that lies on a queue or topic endpoint.

        Returns:
            How many messages that were, and the effects.

        Raises:
            Refused: PRECONDITION_FAILED, a replay is under way.
        """
        replay = endpoint.replay
        if replay is not None and replay.is_under_way:
            raise Refused(
                ErrorCode.PRECONDITION_FAILED,
                f"a replay of {endpoint.name!r} is {replay.state.value}; cancel it first",
            )
        count = endpoint.depth
        old, new = self.renumber(endpoint)
        return count, [RenumberEndpoint(old, new, replay.to_json() if replay is not None else None)]

    def change_settings(self, endpoint: Endpoint, settings: EndpointSettings) -> list[Effect]:
        """Change what an endpoint is like; what lies on it stays."""
        self._router.forget()
        return [endpoint.change_settings(settings)]

    def forget_routes(self) -> None:
        """Where messages go has changed."""
        self._router.forget()

    def log_facts(self, endpoint: Endpoint | None = None) -> LogFacts:
        """What is known of the log; of the part that a stream shows, if one is given."""
        log = self.log
        first_id, floor_ms = log.first_id, log.floor_ms
        if endpoint is not None:
            first_id = max(first_id, endpoint.settings.purged_below)
            floor_ms = max(floor_ms, endpoint.settings.purged_ms)
        return LogFacts(self.policy.reads, log.generation, first_id, log.next_id, floor_ms, self.points)

    def purge_stream(self, endpoint: Endpoint) -> list[Effect]:
        """All that is committed is out of a stream's view; the log, and all others that read it, keep it."""
        log = self.log
        # As with trimming, others of that millisecond may follow: from the next on nothing is missing.
        settings = endpoint.settings
        return [
            endpoint.change_settings(
                replace(settings, purged_below=log.next_id, purged_ms=log.last_time_ms + 1)
            )
        ]


def _first_larger(contents: Sequence[bytes], limit_bytes: int) -> int:
    return next((i for i, content in enumerate(contents) if len(content) > limit_bytes), len(contents))


def _first_not_larger(contents: Sequence[bytes], start: int, limit_bytes: int) -> int:
    return next((i for i in range(start, len(contents)) if len(contents[i]) <= limit_bytes), len(contents))


def _fitting(contents: Sequence[bytes], room_bytes: int) -> int:
    for count, content in enumerate(contents):
        room_bytes -= len(content)
        if room_bytes < 0:
            return count
    return len(contents)
