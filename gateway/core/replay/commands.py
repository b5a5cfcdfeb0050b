"""
Endpoint replays, as commands to the broker: start, feed, hand over to live messages, end.

Each command returns the effects that must be durable before a peer is told. ``gateway.core.replay.states`` says what a
replay is and how it proceeds.
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
from gateway.core.replay.states import Replay, ReplayEvent, ReplayState
from gateway.core.router import Router


@dataclass(eq=False)
class ReplayCommands:
    """
    Commands to the replay of an endpoint, in this order: ``check``; ``start``; ``cleared`` once that is durable;
    ``put`` as the log is read; ``hand_over`` at the end of the log; ``finish_reading``. ``force`` and ``fail`` end the
    replay before that.
    """

    _log: LogState
    _policy: LogPolicy
    _endpoints: Mapping[str, Endpoint]
    _router: Router
    _publications: Publications
    _take_number: Callable[[], int]
    """Takes the next number of a cursor."""

    def check(self, endpoint: Endpoint, *, by_client: bool) -> None:
        """
        Check that a replay of the endpoint may start, for a consumer that is about to be bound, or for an
        administrator.

        Raises:
            Refused: It may not start (docs/reference/refusals.md).
        """
        settings, policy = endpoint.settings, self._policy
        if endpoint.kind.is_view:
            raise Refused(
                ErrorCode.NOT_ALLOWED,
                f"{endpoint.name!r} is a {endpoint.kind.value} and cannot be rewound: each of its readers has "
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
                    f"{endpoint.name!r} is not exclusive and has other consumers; a client may replay it only "
                    "if it is the only consumer",
                )
            if settings.exclusive is Exclusivity.WAIT:
                raise Refused(
                    ErrorCode.INACTIVE_FLOW,
                    f"{endpoint.name!r} has an active consumer; only that consumer may ask for a replay",
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
        Start a replay: drop everything on the endpoint. Once that is committed and the replay is ``cleared``, the log
        from ``position`` on is put on the endpoint again. This cancels a running replay.

        Args:
            name: The name of its record.
            kept: The committed messages of the endpoint that stay; at least all that the log does not have. Then
                uncommitted messages that the log does not take stay, too. None: no message stays.
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
        """The endpoint's earlier messages are durably dropped."""
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
        Put messages that were read from the log on the endpoint; ``position`` is the next id to read.

        Args:
            ids: The ids of ``rows``, rising.
            size_bytes: The content of the messages that are not in ``routed``.
            routed: Ids of the messages that the log did not take and that are on the endpoint by their routes. They
                count as replayed when they are settled.
            archived: Ids of the messages that only the log's archive has.
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
        After a restart, make earlier messages below an id ready again: those that came by routes, and those with
        references. Return whether there are any.

        Args:
            rows: The messages that came by routes and that the log did not take, rising; all between the last call's id
                and this one's.
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
        The replay is about to put messages that only the log's archive has. The effects must be committed before their
        delivery. After a restart, the replay reads these messages from the archive again. (Other messages that the log
        has dropped have references.)
        """
        replay = _replay_of(endpoint)
        if replay.is_archived:
            return []
        replay.is_archived = True
        return [endpoint.replay_definition()]

    @staticmethod
    def subscriptions_changed(endpoint: Endpoint, position: int) -> list[Effect]:
        """From ``position`` on, the log is read by the endpoint's present subscriptions."""
        _replay_of(endpoint).subscribe(position, endpoint.subscriptions)
        return [endpoint.replay_definition()]

    def hand_over(self, endpoint: Endpoint) -> list[Effect]:
        """All committed messages were read: from the next id on, live messages are routed to the endpoint again."""
        replay = _replay_of(endpoint)
        replay.live_from = self._log.unused_id
        self._router.cached.clear()
        return [endpoint.replay_definition()]

    def finish_reading(self, endpoint: Endpoint, position: int) -> list[Effect]:
        """Every message before ``position`` is on the endpoint, or is not wanted: live messages follow in order."""
        replay = _replay_of(endpoint)
        replay.move(ReplayEvent.CAUGHT_UP)
        endpoint.go_on_from(position)
        if forced := self.end_forced(endpoint):
            return forced
        replay.settle_state()
        return [endpoint.replay_definition()] if replay.is_under_way else endpoint.end_replay()

    def check_cancel(self, endpoint: Endpoint) -> Replay:
        """
        The endpoint's running replay, to cancel it.

        Raises:
            Refused: PRECONDITION_FAILED, no replay is running.
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
        End the replay at its position: it reads no more, the messages that it has put stay, and live messages follow.
        If it is still reading, ``finish_reading`` ends it, once no message is on its way into the store. If
        transactions are about to settle some of its messages, ``end_forced`` ends it after them.

        Raises:
            Refused: PRECONDITION_FAILED, only the log's archive has some of the messages that it has put.
        """
        replay = _replay_of(endpoint)
        archived = len(endpoint.backlog.put.archived)
        if archived:
            raise Refused(
                ErrorCode.PRECONDITION_FAILED,
                f"{archived} of the messages that the replay of {endpoint.name!r} has put there are only in "
                "the log's archive, and cannot stay without the replay: have them consumed, or cancel the "
                "replay",
            )
        replay.is_forced = True
        if replay.is_reading:
            return [] if replay.live_from is not None else self.hand_over(endpoint)
        return self.end_forced(endpoint)

    @staticmethod
    def end_forced(endpoint: Endpoint) -> list[Effect]:
        """
        Complete a replay that was forced, and whose messages stay by references; empty if there is none, or if it must
        wait. It waits while transactions are about to settle some of its messages: a reference that is written after
        such a transaction would bring a settled message back at the next start.
        """
        replay = endpoint.replay
        if replay is None or not replay.is_forced or replay.state is not ReplayState.PENDING_COMPLETE:
            return []
        if endpoint.is_replay_in_doubt:
            return []
        replay.move(ReplayEvent.FORCED)
        replay.totals.succeeded += 1
        return [*endpoint.backlog.put.keep(), endpoint.replay_definition()]

    def fail(self, endpoint: Endpoint, reason: str, now_ms: int, position: int) -> list[Effect]:
        """
        The replay fails or is cancelled: its unsettled messages are dropped, live messages stay, and the endpoint is
        live from now on.

        Args:
            position: Routed messages below this id were put by the replay, or are not wanted.
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
    """Note the priorities of messages that are about to be put on the endpoint, if it delivers by priority."""
    if endpoint.settings.priorities:
        priorities = priorities_of([row[CONTENT] for row in rows], [row[BARE] for row in rows])
        endpoint.ready.note_priorities(ids, priorities)


class KeptMessage(NamedTuple):
    """A committed message that is on an endpoint by a route."""

    message_id: int
    route: int
    """The route number in its row."""
    size_bytes: int
    attempts: int = 0
    """The number of failed deliveries in the store."""


class KeptMessages:
    """
    The messages that a replay keeps on its endpoint: they are there by routes, and the log does not have them. An
    instance exists from before the endpoint is emptied until the messages are there again.

    The messages keep their ids, and so their places among the replayed messages, and their times, priorities and failed
    deliveries. They are not copied: the endpoint's new cursor has not passed them. The old cursor passes them before it
    is dropped, so that the endpoint still holds them. Invariant: an earlier message of the endpoint belongs to the
    endpoint's cursor or to the replay's cursor, never to both. The replay's cursor has passed the kept messages. So the
    replay does not put them a second time if it gets them from the message cache, from the archive, or from a page that
    was read before they were trimmed.
    """

    def __init__(
        self, endpoint: Endpoint, committed: Sequence[KeptMessage], on_the_way: Iterable[Publication]
    ) -> None:
        """
        Args:
            committed: The committed messages to keep; ids rise.
            on_the_way: All uncommitted publications that the log does not take. The endpoint's messages among them are
                kept, too, and counted once they are committed.
        """
        backlog = endpoint.backlog
        part_of = {number: backlog.part_of(route) for route in backlog.routes for number in route.numbers}
        self._endpoint = endpoint
        self._committed = [one.message_id for one in committed]
        self._ids: dict[int, list[int]] = {}
        """By part, the ids of the kept messages, rising."""
        self._counts: dict[int, tuple[int, int]] = {}
        for one in committed:
            part = part_of[one.route]
            self._ids.setdefault(part, []).append(one.message_id)
            messages, size = self._counts.get(part, (0, 0))
            self._counts[part] = messages + 1, size + one.size_bytes
        for publication in on_the_way:
            for row in publication.rows:
                on_way = part_of.get(row[ROUTE])
                # Else it was dropped already: the endpoint was emptied before it was committed.
                if on_way is not None and not backlog.parts[on_way].is_done(row[ID]):
                    self._ids.setdefault(on_way, []).append(row[ID])
        stored = {one.message_id: one.attempts for one in committed if one.attempts}
        known = [(i, endpoint.attempts.get(i, stored.get(i, 0))) for ids in self._ids.values() for i in ids]
        self._attempts = [(i, count) for i, count in known if count]

    @property
    def last_id(self) -> int:
        """The newest kept message; 0 where there is none."""
        return max((ids[-1] for ids in self._ids.values()), default=0)

    def leave(self) -> list[Effect]:
        """The old cursor passes the kept messages before it is dropped; the endpoint holds them as before."""
        number = self._endpoint.cursor_number
        return [MoveCursor(number, part, ranges={i: i for i in ids}) for part, ids in self._ids.items()]

    def enter(self, emptying: Sequence[Effect], newest_id: int) -> list[Effect]:
        """
        Put the kept messages on the endpoint, which was emptied and whose replay has begun.

        Args:
            emptying: The effects of the emptying. The first one opens the new cursor.
            newest_id: The last committed id.

        Returns:
            The effects that replace ``emptying``.
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
        # If the replay fails before it reads, the kept messages are read from the store.
        endpoint.ready.forget_all(backlog.parts)
        if self._attempts:
            endpoint.note_attempts(self._attempts)
            effects.append(CountAttempts(backlog.cursor_number, tuple(self._attempts)))
        # Only committed ones: the commit of others may fail, and their ids go to other messages.
        return [*effects, *others, *backlog.put.leave_to_routes(self._committed)]
