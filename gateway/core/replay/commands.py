"""
Replays onto endpoints, as commands to the broker: started, fed, handed over to live traffic, ended.

Each returns the effects that must be durable before anybody is told. What a replay is and how it proceeds stands in
``gateway.core.replay.states``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from amqp_ext.message.fields import priorities_of
from gateway.core.effects import CountAttempts, Effect, MoveCursor, OpenCursor, Publication
from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.endpoint.settings import Exclusivity
from gateway.core.errors import ErrorCode, Refused
from gateway.core.log import LogPolicy
from gateway.core.model import BARE, CONTENT, ID, ROUTE, LogState, Row
from gateway.core.publications import Publications
from gateway.core.replay.states import Replay, ReplayEvent
from gateway.core.router import Router


@dataclass(eq=False)
class ReplayCommands:
    """
    Commands to the replay of an endpoint. In order: ``check``, ``start``, and once that is durable ``cleared``; ``put``
    as the log is read; ``hand_over`` at its end, and ``finish_reading``. ``force`` and ``fail`` end it before.
    """

    _log: LogState
    _policy: LogPolicy
    _endpoints: Mapping[str, Endpoint]
    _router: Router
    _publications: Publications
    _take_number: Callable[[], int]
    """Gives out the number of a cursor."""

    def check(self, endpoint: Endpoint, *, by_client: bool) -> None:
        """
        Whether a replay of the endpoint may start; asked for by a consumer about to be bound, or by an administrator.

        Raises:
            Refused: It may not (docs/reference/refusals.md).
        """
        settings, policy = endpoint.settings, self._policy
        if endpoint.kind.is_view:
            raise Refused(
                ErrorCode.NOT_ALLOWED,
                f"{endpoint.name!r} is a {endpoint.kind.value} and has nothing to rewind: each of its readers brings "
                "its own start",
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
            for other in self._endpoints.values()
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
        Everything on the endpoint is dropped; once that is committed and the replay ``cleared``, the log from
        ``position`` on is put on it again. A replay under way is cancelled by it.

        Args:
            name: Of its record.
            kept: What stays of what lies there and is committed: all at least that the log does not have. With it stays
                what the log does not take and is on its way. None: nothing stays.
        """
        log, publications = self._log, self._publications
        on_the_way = publications.unlogged_on_way if kept is not None else ()
        keeping = KeptMessages(endpoint, kept or (), on_the_way)
        left = keeping.leave()
        cursor, replay_cursor = self._take_number(), self._take_number()
        replay = Replay.request(
            position, now_ms, endpoint.replay, replay_cursor, endpoint.subscriptions, name
        )
        replay.marked_below, replay.kept_up_to = log.unused_id, keeping.last_id
        effects = endpoint.begin_replay(replay, cursor, replay_cursor, log.unused_id - 1)
        effects = [*left, *keeping.enter(effects, log.newest_id)]
        publications.emptied(endpoint)
        self._router.cached.clear()
        return effects

    @staticmethod
    def cleared(endpoint: Endpoint) -> None:
        """What lay on the endpoint before the replay is gone, durably."""
        _replay_of(endpoint).move(ReplayEvent.CLEARED)

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
        _note_priorities(endpoint, ids, rows)
        among = set(routed)
        put = [i for i in ids if i not in among] if among else ids
        endpoint.backlog.put.add(put, size_bytes, archived)
        _replay_of(endpoint).put_up_to(position, len(ids), size_bytes)
        endpoint.ready.add_put(ids, routed)

    @staticmethod
    def put_again(endpoint: Endpoint, rows: Sequence[Row], below: int) -> bool:
        """
        What was put before a stop is on the endpoint again, below an id: what came by routes, and what references lead
        to; whether there is any.

        Args:
            rows: What of it came by routes and the log did not take, rising; all of it between the last call's id and
                this one's.
        """
        routed = [row[ID] for row in rows]
        _note_priorities(endpoint, routed, rows)
        referred = endpoint.backlog.put.take_waiting(below)
        if not routed and not referred:
            return False
        replay = _replay_of(endpoint)
        replay.put_up_to(replay.position, len(routed))
        endpoint.ready.add_put(sorted([*routed, *referred]), routed)
        return True

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
        replay.live_from = self._log.unused_id
        self._router.cached.clear()
        return [endpoint.replay_definition()]

    @staticmethod
    def finish_reading(endpoint: Endpoint, position: int) -> list[Effect]:
        """Every message before ``position`` is on the endpoint, or was given up: live ones follow, in order."""
        replay = _replay_of(endpoint)
        replay.move(ReplayEvent.CAUGHT_UP)
        endpoint.go_on_from(position)
        if replay.is_forced:
            return _force_complete(endpoint)
        replay.settle_state()
        return [endpoint.replay_definition()] if replay.is_under_way else endpoint.end_replay()

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
            replay.is_forced = True
            return [] if replay.live_from is not None else self.hand_over(endpoint)
        return _force_complete(endpoint)

    def fail(self, endpoint: Endpoint, reason: str, now_ms: int, position: int) -> list[Effect]:
        """
        The replay cannot go on, or is not to: what it had put and was not acknowledged is dropped, live messages stay,
        and the endpoint is live from now on.

        Args:
            position: What came by routes before it was put, too, or is not wanted.
        """
        replay = _replay_of(endpoint)
        was_reading = replay.is_reading
        replay.fail(reason, now_ms)
        dropped, effects = endpoint.backlog.put.drop(endpoint.attempts, endpoint.withdrawn)
        endpoint.forget(dropped)
        if was_reading:
            endpoint.go_on_from(position)
        self._router.cached.clear()
        return [*effects, endpoint.replay_definition()]


def _replay_of(endpoint: Endpoint) -> Replay:
    replay = endpoint.replay
    assert replay is not None, f"{endpoint.name} was never replayed"
    return replay


def _note_priorities(endpoint: Endpoint, ids: Sequence[int], rows: Sequence[Row]) -> None:
    """The endpoint delivers by the priorities of messages that are about to be put there, if by any."""
    if endpoint.settings.priorities:
        priorities = priorities_of([row[CONTENT] for row in rows], [row[BARE] for row in rows])
        endpoint.ready.note_priorities(ids, priorities)


def _force_complete(endpoint: Endpoint) -> list[Effect]:
    """The replay is complete, and what it has put stays."""
    _replay_of(endpoint).force_complete()
    return [*endpoint.backlog.put.keep(endpoint.withdrawn), endpoint.replay_definition()]


class KeptMessage(NamedTuple):
    """A committed message that lies on an endpoint by a route."""

    message_id: int
    route: int
    """The number that it names."""
    size_bytes: int
    attempts: int = 0
    """Failed deliveries that the store has of it."""


class KeptMessages:
    """
    What a replay keeps on its endpoint: messages that lie there by routes, and that the log does not have. From before
    the endpoint is emptied until they are there again.

    They keep their ids, and with them their places among what the replay puts, their times, priorities and failed
    deliveries. Nothing is copied: the endpoint's new cursor has not passed them, and the old one has, so that nothing
    of theirs is let go of when it is dropped. Invariant: a message that was there before the replay is a matter of the
    endpoint's cursor or of the replay's, and never of both. The replay's has passed what is kept: whoever still has
    that as the log had it (the message cache, the archive, a page that was read before it was trimmed) does not bring
    it twice.
    """

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
        """The cursor that is about to be dropped passes them; they are held as before."""
        number = self._endpoint.cursor_number
        return [MoveCursor(number, part, ranges={i: i for i in ids}) for part, ids in self._ids.items()]

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
