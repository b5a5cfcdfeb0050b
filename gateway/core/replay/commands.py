"""
Replays onto endpoints, as commands to the broker: started, fed, handed over to live traffic, ended.

Each returns the effects that must be durable before anybody is told. What a replay is and how it proceeds stands in
``replay``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING

from amqp_ext.message.priority import priorities_of
from gateway.core.effects import AddReferences, DropReplayed, Effect, RenumberEndpoint, SaveReplay
from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.endpoint.settings import EndpointKind, Exclusivity
from gateway.core.errors import ErrorCode, Refused
from gateway.core.model import Row
from gateway.core.replay.states import Replay, ReplayEvent, ReplayRecord

if TYPE_CHECKING:
    from gateway.core.broker import Broker


class ReplayCommands:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def check(self, endpoint: Endpoint, *, by_client: bool) -> None:
        """
        Whether a replay of the endpoint may start; asked for by a consumer about to be bound, or by an administrator.

        Raises:
            Refused: As contract section 8 has it.
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

    def start(self, endpoint: Endpoint, position: int, now_ms: int) -> list[Effect]:
        """
        Everything on the endpoint is dropped; once that is committed and ``cleared``, the log from ``position`` on is
        put on it again. A replay under way is cancelled by it.
        """
        old = endpoint.replay
        record = old.record if old is not None else ReplayRecord()
        if old is not None and old.is_under_way:
            old.fail("a new replay took its place", now_ms)
        record.started += 1
        record.last_started_ms = now_ms
        replay = endpoint.replay = Replay(position, first=position, started_ms=now_ms, record=record)
        replay.move(ReplayEvent.REQUESTED)
        number, new = self._broker.renumber(endpoint)
        return [RenumberEndpoint(number, new, replay.to_json())]

    @staticmethod
    def cleared(replay: Replay) -> None:
        """What lay on the endpoint is gone, durably."""
        replay.move(ReplayEvent.CLEARED)

    def put(
        self, endpoint: Endpoint, rows: Sequence[Row], size_bytes: int, position: int, passed: int = 0
    ) -> list[Effect]:
        """
        Messages read from the log go on the endpoint; ``position`` is the next id to read.

        Args:
            passed: How many messages that the log did not take lie on the endpoint between them: acknowledged, they
                count as the others do.
        """
        replay = _replay_of(endpoint)
        replay.position = position
        ids = [row[0] for row in rows]
        priorities = None
        if endpoint.settings.priorities:
            priorities = priorities_of([row[5] for row in rows], [row[3] for row in rows])
            endpoint.ready.note(ids, priorities)
        replay.put += len(ids) + passed
        endpoint.depth += len(ids)
        endpoint.size_bytes += size_bytes
        return [AddReferences(endpoint.number, ids, size_bytes, replay.to_json(), priorities)]

    @staticmethod
    def not_put(endpoint: Endpoint, number: int, count: int, size_bytes: int) -> None:
        """They could not be written, and are not on the endpoint, if it carries the same number still."""
        if endpoint.number == number:
            endpoint.depth -= count
            endpoint.size_bytes -= size_bytes

    def hand_over(self, endpoint: Endpoint) -> list[Effect]:
        """Everything committed was read: from the next id on, live messages go to the endpoint again."""
        replay = _replay_of(endpoint)
        replay.live_from = self._broker.next_id
        self._broker.forget_routes()
        return [SaveReplay(endpoint.number, replay.to_json())]

    def finish_reading(self, endpoint: Endpoint) -> list[Effect]:
        """Every message below ``live_from`` is on the endpoint (or was given up): live ones follow, in order."""
        replay = _replay_of(endpoint)
        assert replay.live_from is not None
        replay.put += bisect_left(endpoint.awaiting_replay, replay.live_from)
        replay.move(ReplayEvent.CAUGHT_UP)
        if endpoint.awaiting_replay:
            endpoint.add_committed(endpoint.awaiting_replay)
            endpoint.awaiting_replay = []
        if replay.is_forced:
            self._complete(replay)
        else:
            replay.settle_state()
        return [SaveReplay(endpoint.number, replay.to_json())]

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
        """
        replay = _replay_of(endpoint)
        if replay.is_reading:
            replay.is_forced = True
            return [] if replay.live_from is not None else self.hand_over(endpoint)
        self._complete(replay)
        return [SaveReplay(endpoint.number, replay.to_json())]

    @staticmethod
    def _complete(replay: Replay) -> None:
        replay.move(ReplayEvent.FORCED)
        replay.record.succeeded += 1

    def fail(self, endpoint: Endpoint, reason: str, now_ms: int) -> DropReplayed:
        """
        The replay cannot go on, or is not to: what it had put and was not acknowledged is dropped, live messages stay,
        and the endpoint is live from now on. Tell ``dropped`` once that is committed.
        """
        replay = _replay_of(endpoint)
        boundary = replay.boundary
        assert boundary is not None
        replay.fail(reason, now_ms)
        endpoint.forget_memory(self._broker.log.next_id - 1)
        self._broker.forget_routes()
        return DropReplayed(endpoint.number, boundary, replay.to_json())

    @staticmethod
    def dropped(endpoint: Endpoint, effect: DropReplayed) -> None:
        """The replayed messages are gone, durably: what is left is read from the store."""
        if endpoint.number == effect.endpoint:
            endpoint.depth -= effect.count
            endpoint.size_bytes -= effect.size_bytes
            endpoint.is_dropping = False


def _replay_of(endpoint: Endpoint) -> Replay:
    replay = endpoint.replay
    assert replay is not None, f"{endpoint.name} was never replayed"
    return replay
