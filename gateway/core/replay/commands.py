"""
Replays onto endpoints, as commands to the broker: started, fed, handed over to live traffic, ended; and copies of
single logged messages.

Each returns the effects that must be durable before anybody is told. What a replay is and how it proceeds stands in
``gateway.core.replay.states``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from amqp_ext.message.priority import priorities_of
from gateway.core.effects import AddReferences, CountAttempts, Effect, MoveCursor, OpenCursor, Publication
from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.endpoint.settings import EndpointKind, Exclusivity
from gateway.core.errors import ErrorCode, Refused
from gateway.core.log import LogPolicy
from gateway.core.model import BARE, CONTENT, ID, ROUTE, LogState, Row
from gateway.core.publications import Publications
from gateway.core.replay.states import Replay


class ReplayedBroker(Protocol):
    """What the commands need of the broker that they belong to."""

    @property
    def policy(self) -> LogPolicy:
        """What the log takes and gives."""

    @property
    def log(self) -> LogState:
        """The log as the store has it."""

    @property
    def publications(self) -> Publications:
        """What is on its way to endpoints."""

    @property
    def endpoints(self) -> Mapping[str, Endpoint]:
        """All of them, by name."""

    def take_number(self) -> int:
        """The next number of an endpoint or a cursor."""

    def forget_routes(self) -> None:
        """Where messages go has changed."""


class ReplayCommands:
    def __init__(self, broker: ReplayedBroker) -> None:
        self._broker = broker

    def check(self, endpoint: Endpoint, *, by_client: bool) -> None:
        """
        Whether a replay of the endpoint may start; asked for by a consumer about to be bound, or by an administrator.

        Raises:
            Refused: It may not (docs/reference/refusals.md).
        """
        settings, policy = endpoint.settings, self._broker.policy
        if endpoint.kind is EndpointKind.STREAM:
            raise Refused(
                ErrorCode.NOT_ALLOWED,
                f"{endpoint.name!r} is a stream and has nothing to rewind: each of its readers brings its own start",
            )
        policy.check_reads("there is nothing to replay")
        if settings.temporary and not policy.replay_temporary:
            raise Refused(
                ErrorCode.REPLAY_TEMPORARY, "replay_temporary is off: temporary endpoints cannot be replayed"
            )
        if by_client and endpoint.flows:
            if settings.exclusive is Exclusivity.NONE:
                raise Refused(
                    ErrorCode.NON_EXCLUSIVE,
                    f"{endpoint.name!r} is not exclusive and has other consumers; a client may replay it only alone",
                )
            if settings.exclusive is Exclusivity.WAIT:
                raise Refused(
                    ErrorCode.INACTIVE_FLOW,
                    f"{endpoint.name!r} has an active consumer; only that one may ask for a replay",
                )
        under_way = sum(
            1
            for other in self._broker.endpoints.values()
            if other is not endpoint and other.replay is not None and other.replay.is_reading
        )
        if under_way >= policy.max_replays:
            raise Refused(
                ErrorCode.OUT_OF_REPLAY_RESOURCES,
                f"{policy.max_replays} replays are under way; try again later",
            )

    def start(
        self,
        endpoint: Endpoint,
        position: int,
        now_ms: int,
        name: str = "",
        kept: Sequence[KeptMessage] | None = None,
    ) -> list[Effect]:
        """
        Everything on the endpoint is dropped; once that is committed and ``EndpointReplay.cleared``, the log from
        ``position`` on is put on it again. A replay under way is cancelled by it.

        Args:
            name: Of its record.
            kept: What stays of what lies there and is committed: all at least that the log does not have. With it stays
                what the log does not take and is on its way. None: nothing stays.
        """
        broker, publications = self._broker, self._broker.publications
        on_the_way = publications.unlogged_on_way if kept is not None else ()
        keeping = KeptMessages(endpoint, kept or (), on_the_way)
        left = keeping.leave()
        cursor, replay_cursor = broker.take_number(), broker.take_number()
        replay = Replay.request(
            position,
            now_ms,
            endpoint.replay,
            replay_cursor,
            endpoint.subscriptions,
            name,
            publications.next_id,
            keeping.last_id,
        )
        effects = endpoint.begin_replay(replay, cursor, replay_cursor, publications.next_id - 1)
        effects = [*left, *keeping.enter(effects, broker.log.next_id - 1)]
        publications.emptied(endpoint)
        broker.forget_routes()
        return effects

    @staticmethod
    def put(
        endpoint: Endpoint,
        ids: Sequence[int],
        rows: Sequence[Row],
        size_bytes: int,
        routed: Sequence[int],
        position: int,
        archived: Sequence[int] = (),
    ) -> None:
        """
        Messages read from the log go on the endpoint; ``position`` is the next id to read.

        Args:
            ids: Of ``rows``, rising.
            size_bytes: Content of those that are not among ``routed``.
            routed: Ids of those that the log did not take, and that lie on the endpoint by their routes: acknowledged,
                they count as the others do.
            archived: Ids of those that the log's archive alone has.
        """
        priorities = None
        if endpoint.settings.priorities:
            priorities = priorities_of([row[CONTENT] for row in rows], [row[BARE] for row in rows])
        endpoint.replaying.put(ids, priorities, size_bytes, routed, position, archived)

    @staticmethod
    def put_again(endpoint: Endpoint, rows: Sequence[Row], below: int) -> bool:
        """
        What was put before a stop, below an id, is on the endpoint again; whether there is any.

        Args:
            rows: What of it came by routes, rising.
        """
        priorities = None
        if endpoint.settings.priorities:
            priorities = priorities_of([row[CONTENT] for row in rows], [row[BARE] for row in rows])
        return endpoint.replaying.put_again([row[ID] for row in rows], priorities, below)

    @staticmethod
    def reads_archive(endpoint: Endpoint) -> list[Effect]:
        """
        What is put next is in the log's archive alone; to be ordered before it is delivered. A start after a stop reads
        it there again, where of what the log has dropped it else has what references lead to.
        """
        replay = _replay_of(endpoint)
        if replay.is_archived:
            return []
        replay.is_archived = True
        return [endpoint.replay_definition()]

    @staticmethod
    def subscriptions_changed(endpoint: Endpoint, position: int) -> list[Effect]:
        """From ``position`` on the log is read by the endpoint's subscriptions as they are now."""
        _replay_of(endpoint).subscribe(position, endpoint.subscriptions)
        return [endpoint.replay_definition()]

    def hand_over(self, endpoint: Endpoint) -> list[Effect]:
        """Everything committed was read: from the next id on, live messages go to the endpoint again."""
        replay = _replay_of(endpoint)
        replay.hand_over(self._broker.publications.next_id)
        self._broker.forget_routes()
        return [endpoint.replay_definition()]

    @staticmethod
    def finish_reading(endpoint: Endpoint, position: int) -> list[Effect]:
        """Every message before ``position`` is on the endpoint, or was given up: live ones follow, in order."""
        replay = _replay_of(endpoint)
        endpoint.replaying.end_reading(position)
        if replay.is_forced:
            return endpoint.replaying.force_complete()
        replay.settle_state()
        return [endpoint.replay_definition()] if replay.is_under_way else endpoint.replaying.end()

    def check_cancel(self, endpoint: Endpoint) -> Replay:
        """
        The endpoint's replay, if there is one to be cancelled.

        Raises:
            Refused: PRECONDITION_FAILED, none is under way.
        """
        replay = endpoint.replay
        if replay is None or not replay.is_under_way:
            state = "n/a" if replay is None else replay.state.value
            raise Refused(
                ErrorCode.PRECONDITION_FAILED,
                f"no replay of {endpoint.name!r} is under way: its state is {state}",
            )
        return replay

    def force(self, endpoint: Endpoint) -> list[Effect]:
        """
        The replay is to end where it is: nothing more is read, what it has put stays, and live messages follow. One
        that is still reading is ended by ``finish_reading``, when nothing of it is on its way to the store.

        Raises:
            Refused: PRECONDITION_FAILED, some of what it has put is in the log's archive alone.
        """
        replay = _replay_of(endpoint)
        archived = len(endpoint.backlog.put.archived)
        if archived:
            raise Refused(
                ErrorCode.PRECONDITION_FAILED,
                f"{archived} of the messages that the replay of {endpoint.name!r} has put are in the log's archive "
                "alone, and cannot stay without it: have them consumed, or cancel it",
            )
        if replay.is_reading:
            replay.force()
            return [] if replay.live_from is not None else self.hand_over(endpoint)
        return endpoint.replaying.force_complete()

    def fail(self, endpoint: Endpoint, reason: str, now_ms: int, position: int) -> list[Effect]:
        """
        The replay cannot go on, or is not to: what it had put and was not acknowledged is dropped, live messages stay,
        and the endpoint is live from now on.

        Args:
            position: What came by routes before it was put, too, or is not wanted.
        """
        effects = endpoint.replaying.fail(reason, now_ms, position)
        self._broker.forget_routes()
        return effects


def _replay_of(endpoint: Endpoint) -> Replay:
    replay = endpoint.replay
    assert replay is not None, f"{endpoint.name} was never replayed"
    return replay


class KeptMessage(NamedTuple):
    """A committed message that lies on an endpoint by a route."""

    message_id: int
    route: int
    """The number that it names."""
    size_bytes: int
    attempts: int = 0
    """Failed deliveries that the store has of it."""


class KeptMessages:
    """They are kept: from before their endpoint is emptied until they are there again."""

    def __init__(
        self, endpoint: Endpoint, committed: Sequence[KeptMessage], on_the_way: Iterable[Publication]
    ) -> None:
        """
        Args:
            committed: What is kept of what is committed; ids rise.
            on_the_way: Whatever the log does not take of what is not: those of the endpoint's are kept, too, and
                counted once they are committed.
        """
        backlog = endpoint.backlog
        part_of = {number: backlog.part_of(route) for route in backlog.routes for number in route.numbers}
        self._endpoint = endpoint
        self._committed = [one.message_id for one in committed]
        self._ids: dict[int, list[int]] = {}
        """Rising, by part."""
        self._counts: dict[int, tuple[int, int]] = {}
        for one in committed:
            part = part_of[one.route]
            self._ids.setdefault(part, []).append(one.message_id)
            messages, size = self._counts.get(part, (0, 0))
            self._counts[part] = messages + 1, size + one.size_bytes
        for publication in on_the_way:
            for row in publication.rows:
                on_way = part_of.get(row[ROUTE])
                # Else it was dropped already, when the endpoint was emptied while it was on its way.
                if on_way is not None and not backlog.parts[on_way].is_done(row[ID]):
                    self._ids.setdefault(on_way, []).append(row[ID])
        stored = {one.message_id: one.attempts for one in committed if one.attempts}
        known = [(i, endpoint.attempts.get(i, stored.get(i, 0))) for ids in self._ids.values() for i in ids]
        self._attempts = [(i, count) for i, count in known if count]

    @property
    def last_id(self) -> int:
        """The newest of them; 0 where there is none."""
        return max((ids[-1] for ids in self._ids.values()), default=0)

    def leave(self) -> list[Effect]:
        """The cursor that is about to be dropped is done with them; they are held as before."""
        number = self._endpoint.cursor_number
        return [
            MoveCursor(number, part, None, {i: i for i in ids}, None, 0, 0) for part, ids in self._ids.items()
        ]

    def enter(self, emptying: Sequence[Effect], newest_id: int) -> list[Effect]:
        """
        The endpoint was emptied, its replay has begun, and it has them.

        Args:
            emptying: The effects by which that was: the first opens its cursor.
            newest_id: The last committed one.

        Returns:
            The effects in the place of those.
        """
        if not self._ids:
            return list(emptying)
        endpoint, backlog = self._endpoint, self._endpoint.backlog
        assert backlog.is_awake, (
            "whoever was emptied counts for itself until all that was on its way has come"
        )
        opened, *others = emptying
        assert isinstance(opened, OpenCursor)
        lowest = min(ids[0] for ids in self._ids.values())
        effects: list[Effect] = [replace(opened, floor=min(lowest - 1, newest_id), given_out=opened.floor)]
        for part, cursor in backlog.parts.items():
            if part in self._ids:
                cursor.reopen(self._ids[part])
            cursor.count(*self._counts.get(part, (0, 0)))
            messages, size = cursor.saves(cursor.messages, cursor.size_bytes)
            ranges = cursor.change().ranges
            effects.append(
                MoveCursor(backlog.cursor_number, part, cursor.floor, ranges, newest_id, messages, size)
            )
        # Where the replay fails before it reads, they are read from the store.
        endpoint.ready.forget_all(backlog.parts)
        if self._attempts:
            endpoint.note_attempts(self._attempts)
            effects.append(CountAttempts(backlog.cursor_number, tuple(self._attempts)))
        # What is not committed may come to nothing, and its ids to others.
        return [*effects, *others, *backlog.put.leave_to_routes(self._committed)]


def check_copy(policy: LogPolicy, endpoint: Endpoint) -> None:
    """
    Whether a message of the log can be put on the endpoint.

    Raises:
        Refused: NOT_ALLOWED for a stream, REPLAY_DISABLED, PRECONDITION_FAILED while a replay is under way.
    """
    if endpoint.kind is EndpointKind.STREAM:
        raise Refused(
            ErrorCode.NOT_ALLOWED, f"{endpoint.name!r} is a stream: it shows the log, and holds no copies"
        )
    policy.check_reads("there is nothing to copy from")
    if endpoint.replay is not None and endpoint.replay.is_under_way:
        raise Refused(
            ErrorCode.PRECONDITION_FAILED,
            f"a replay of {endpoint.name!r} is under way; copy when it is complete, or cancel it first",
        )


def begin_copy(policy: LogPolicy, first_id: int, endpoint: Endpoint, row: Row) -> AddReferences:
    """
    Put a logged message on an endpoint on which it does not lie. Once that is committed, or failed, tell
    ``Endpoint.end_copy``.

    Args:
        first_id: The first id that the log will have once what is ordered is trimmed.

    Raises:
        Refused: As ``check_copy`` has it; START_MESSAGE_UNAVAILABLE, it was trimmed; RESOURCE_LIMIT, over the quota.
    """
    check_copy(policy, endpoint)
    if row[ID] < first_id:
        raise Refused(ErrorCode.START_MESSAGE_UNAVAILABLE, f"message {row[ID]} was trimmed from the log")
    if not endpoint.room_for([row[CONTENT]]):
        raise Refused(
            ErrorCode.RESOURCE_LIMIT, f"{endpoint.name!r} is at its quota; consume from it or raise the quota"
        )
    return endpoint.begin_copy(row)
