"""
Replays onto endpoints, as they run: begun, pumped, cancelled, failed, and told of.

The rules are the broker's (``gateway.core.replay.commands``); here they meet commits, consumers, clock and log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TypeVar

from gateway import log_keys
from gateway.core.effects import Effect
from gateway.core.endpoint.endpoint import Endpoint, Flow
from gateway.core.errors import ErrorCode, Refused
from gateway.core.model import BY_NOBODY, CANCELLED, FAILED, ID, ReplayRequest, Row
from gateway.core.replay.commands import KeptMessage
from gateway.core.replay.states import Replay, ReplayState
from gateway.vpn.delivery.consumers import Consumers
from gateway.vpn.delivery.feeds import Feeds
from gateway.vpn.replay.pump import PumpShared, ReplayPump
from gateway.vpn.replay.records import DELETED, REPLACED, EndpointRecords
from gateway.vpn.settings import CurrentSettings
from gateway.vpn.telemetry.message_tracing import MessageTracing
from store.errors import ReadFailed, WriteFailed

T = TypeVar("T")

TRY_AGAIN_S = 1.0
"""Seconds after a failed write until what a replay must have durable is written again."""


class ReplayRunner:
    def __init__(
        self,
        shared: PumpShared,
        feeds: Feeds,
        consumers: Consumers,
        settings: CurrentSettings,
        tracing: MessageTracing | None = None,
    ) -> None:
        self._broker = shared.broker
        self._committer = shared.committer
        self._shared = shared
        self._feeds = feeds
        self._consumers = consumers
        self._settings = settings
        self._tracing = tracing
        self._loop = shared.runtime.loop
        self._now_ms = shared.runtime.clock.now_ms
        self._log = shared.runtime.log
        self._pumps: dict[str, ReplayPump] = {}
        self._stopped: dict[str, int] = {}
        """Below which ids all that a stop left is put, of replays that were not resumed yet, by endpoints' names."""
        self.records = EndpointRecords(self._broker.replay_records, self._committer, self._now_ms)
        """Who replayed what."""

    def check(self, endpoint: Endpoint, *, by_client: bool, name: str = "") -> None:
        """
        Whether a replay of the endpoint may start; asked for by a consumer about to be bound, or by an administrator.

        Args:
            name: What it is to be called; empty where nobody says.

        Raises:
            Refused: It may not (docs/reference/refusals.md).
        """
        self._broker.replay_commands.check(endpoint, by_client=by_client)
        self._broker.replay_records.name_for(name, "", 0)

    # --- begun and ended --------------------------------------------------------------------------------------

    def start(
        self,
        endpoint: Endpoint,
        first: int,
        requester: Flow | None,
        request: ReplayRequest = BY_NOBODY,
        kept: Sequence[KeptMessage] | None = None,
    ) -> None:
        """
        Begin a replay that was checked: other flows are detached, what lay on the endpoint is dropped, and when that is
        durable the log is put on it from ``first`` on. Await ``Committer.committed`` before the requester is told.

        Args:
            kept: What stays of it (``gateway.vpn.replay.unlogged``); None drops all.
        """
        started = Refused(
            ErrorCode.REPLAY_STARTED, f"a replay of {endpoint.name!r} was started; attach again"
        )
        self._consumers.displace_all(endpoint, started, but=requester)
        now_ms = self._now_ms()
        name = self._broker.replay_records.name_for(request.name, request.requester, now_ms)
        self.records.end(endpoint, CANCELLED, REPLACED)
        effects = self._broker.replay_commands.start(endpoint, first, now_ms, name, kept)
        effects += self.records.begin(endpoint, request)
        self._feeds.of(endpoint).clear()
        self._pumps.pop(endpoint.name, None)
        self._stopped.pop(endpoint.name, None)
        self._say("replay_started", endpoint, **{log_keys.FIRST: first})
        self._clear(endpoint, effects)

    def _clear(self, endpoint: Endpoint, effects: list[Effect]) -> None:
        """Initializing, until what lay on the endpoint is durably gone."""
        replay = endpoint.replay
        assert replay is not None

        def committed(error: WriteFailed | None) -> None:
            if endpoint.replay is not replay or replay.state is not ReplayState.INITIALIZING:
                return
            if error is not None:
                self.records.not_saved(endpoint)
                self._loop.call_later(TRY_AGAIN_S, lambda: self._clear_again(endpoint))
                return
            endpoint.replaying.cleared()
            if all(cursor.floor >= replay.position - 1 for cursor in endpoint.backlog.parts.values()):
                self.resume(endpoint)
            else:
                # What was kept is as what a stop left.
                self._loop.create_task(self._resume_stopped(endpoint))

        self._committer.commit(effects, committed)

    def _clear_again(self, endpoint: Endpoint) -> None:
        """What could not be written is owed by the store: with the next commit it is."""
        if endpoint.replay is not None and endpoint.replay.state is ReplayState.INITIALIZING:
            self._clear(endpoint, [])

    def restarted(self, endpoint: Endpoint) -> None:
        """Go on with the endpoint's replay, if a stop interrupted one."""
        replay = endpoint.replay
        if replay is None:
            return
        self.completed(endpoint)
        self.records.restarted(endpoint)
        # Before ids that a crash took back are given out again: they would count as replayed at the next start.
        if replay.is_under_way or replay.live_from == self._broker.next_id:
            self._committer.commit([endpoint.replay_definition()])
        if replay.is_reading:
            self._loop.create_task(self._resume_stopped(endpoint))

    async def _resume_stopped(self, endpoint: Endpoint, after: int | None = None) -> None:
        """
        Go on where a stop interrupted. What the log had not taken, and lay between what the replay had put, is put
        first; so is known of all that is put again how often its delivery failed.

        Args:
            after: What came by routes is put already, up to this id; None: nothing is.
        """
        replay, number = endpoint.replay, endpoint.cursor_number
        if replay is None:
            return  # It was deleted, before its turn came.

        def is_still() -> bool:
            return endpoint.cursor_number == number and endpoint.replay is replay and replay.is_reading

        try:
            failed = await self._read(partial(self._shared.reader.attempts, number))
            if not is_still():
                return
            endpoint.note_attempts(failed)
            backlog = endpoint.backlog
            if after is None:
                after = min(cursor.floor for cursor in backlog.parts.values())
            routes = sorted({route for part in backlog.parts for route in backlog.route_numbers(part)})
            while after + 1 < replay.position:
                page = await self._read(
                    partial(self._shared.reader.routed_page, routes, after, replay.position)
                )
                if not is_still():
                    return
                after = page.position - 1
                self._stopped[endpoint.name] = page.position
                self._put_stopped(endpoint, page.rows, page.position)
            self._put_stopped(endpoint, (), replay.position)
        except ReadFailed as error:
            self._shared.runtime.report("endpoint_read_failed", error)
            self._loop.call_later(TRY_AGAIN_S, self._resume_again, endpoint, replay, after)
            return
        if set(endpoint.subscriptions) != set(replay.subscriptions[-1][1]):
            # The configuration says others than when it was stopped.
            self._committer.commit(
                self._broker.replay_commands.subscriptions_changed(endpoint, replay.position)
            )
        self.resume(endpoint)

    def _resume_again(self, endpoint: Endpoint, replay: Replay, after: int | None) -> None:
        if endpoint.replay is replay and replay.is_reading:
            self._loop.create_task(self._resume_stopped(endpoint, after))

    def _put_stopped(self, endpoint: Endpoint, rows: Sequence[Row], below: int) -> None:
        """What came by routes, or is here by references, below an id, comes before what the replay puts next."""
        backlog, feed = endpoint.backlog, self._feeds.of(endpoint)
        rows = [row for row in rows if row[ID] not in backlog.put.references and backlog.has(row)]
        if not self._broker.replay_commands.put_again(endpoint, rows, below):
            return
        ids = [row[ID] for row in rows]
        if rows and feed.kept.size_bytes < self._share_bytes():
            # Further contents are read again when they are handed out.
            feed.keep(ids, rows)
        feed.run()

    async def _read(self, read: Callable[[], T]) -> T:
        return await asyncio.wrap_future(self._shared.reader.submit(read))

    def resume(self, endpoint: Endpoint) -> None:
        """Go on with a replay that is active."""
        self._stopped.pop(endpoint.name, None)
        pump = self._pumps[endpoint.name] = ReplayPump(
            self._shared,
            self._feeds.of(endpoint),
            self,
            ahead=self._settings.limits.max_unsettled_per_flow,
            most_bytes=self._share_bytes,
        )
        self._loop.call_soon(pump.run)

    def _share_bytes(self) -> int:
        """Content that each replay may keep ahead of consumers."""
        return self._shared.runtime.tuning.replay_ahead_bytes // max(len(self._pumps), 1)

    def is_hungry(self, endpoint: Endpoint) -> None:
        """Consumers can take more than the endpoint's replay has put there."""
        pump = self._pumps.get(endpoint.name)
        if pump is not None and pump.waits_for_hunger:
            self._loop.call_soon(pump.feed_hungry)

    def cancel(self, endpoint: Endpoint, *, force_complete: bool = False) -> None:
        """
        End the replay under way, as an administrator. Cancelled, what it had put and was not acknowledged leaves the
        endpoint, and consumers are detached and told. Force-completed, what it had put stays, consumers go on, and
        what it had not read yet is left to the log. Either way the endpoint is live from now on.

        Raises:
            Refused: PRECONDITION_FAILED, no replay is under way.
        """
        replay = self._broker.replay_commands.check_cancel(endpoint)
        if not force_complete:
            self.fail(endpoint, "it was cancelled", ErrorCode.REPLAY_CANCELLED)
            return
        if replay.state is ReplayState.INITIALIZING:
            raise Refused(
                ErrorCode.PRECONDITION_FAILED,
                f"the replay of {endpoint.name!r} is initializing: cancel it, or force it when it is active",
            )
        self._committer.commit(self._broker.replay_commands.force(endpoint))
        pump = self._pumps.get(endpoint.name)
        if pump is not None:
            pump.run()
        self.completed(endpoint)

    def fail(self, endpoint: Endpoint, reason: str, code: ErrorCode = ErrorCode.REPLAY_FAILED) -> None:
        """A replay cannot go on: its consumers are told, and the endpoint is live again."""
        is_cancelled = code is ErrorCode.REPLAY_CANCELLED
        self._consumers.displace_all(
            endpoint,
            Refused(
                code,
                f"the replay of {endpoint.name!r} was cancelled; attach again for live messages"
                if is_cancelled
                else f"the replay of {endpoint.name!r} failed: {reason}",
            ),
        )
        replay, pump = endpoint.replay, self._pumps.pop(endpoint.name, None)
        assert replay is not None
        # Before it reads, nothing was put in the place of what came by routes, but for what a stop left.
        stopped = self._stopped.pop(endpoint.name, 0)
        position = stopped if pump is None else pump.position
        effects = self._broker.replay_commands.fail(endpoint, reason, self._now_ms(), position)
        self._feeds.of(endpoint).clear()
        self.records.end(endpoint, CANCELLED if is_cancelled else FAILED, reason)
        self._say(
            "replay_cancelled" if is_cancelled else "replay_failed", endpoint, **{log_keys.REASON: reason}
        )
        if self._tracing is not None:
            self._tracing.replay_ended(endpoint.name, replay, reason)
        self._committer.commit(effects, lambda _: self._feeds.deliver(endpoint))

    def leaving(self, found: Sequence[tuple[int, str]]) -> None:
        """
        These messages, (id, topic) with rising ids, are about to leave the log between others: a replay that was to put
        some of them fails, durably before they are gone.
        """
        for endpoint in list(self._broker.endpoints.values()):
            replay = endpoint.replay
            if replay is None or not replay.is_reading:
                continue
            pump = self._pumps.get(endpoint.name)
            position = replay.position if pump is None else pump.position
            if any(message_id >= position and endpoint.topics.matches(topic) for message_id, topic in found):
                self.fail(
                    endpoint,
                    f"the log was trimmed under it: from id {position} on a rule of retention takes messages out",
                    ErrorCode.REPLAY_MESSAGE_UNAVAILABLE,
                )

    def forget(self, endpoint: Endpoint) -> None:
        """The endpoint is gone."""
        self.records.end(endpoint, CANCELLED, DELETED)
        self._pumps.pop(endpoint.name, None)
        self._stopped.pop(endpoint.name, None)

    # --- meanwhile --------------------------------------------------------------------------------------------

    def committed(self, endpoints: Collection[str], news: Mapping[str, int]) -> None:
        """Go on with all of them, by what was published (``CommitListener``)."""
        if news and self._pumps:
            self._run()
        self.records.committed()

    def not_committed(self) -> None:
        """Ids that replays may have waited for came to nothing (``CommitListener``)."""
        self._run()

    def _run(self) -> None:
        for name in list(self._pumps):
            self._go_on(name)

    def _go_on(self, name: str) -> None:
        pump = self._pumps.get(name)
        if pump is not None:
            pump.run()
            if pump.is_over and self._pumps.get(name) is pump:
                del self._pumps[name]

    def put_more(self, endpoint: Endpoint) -> None:
        """What an endpoint's replay has put may be running low."""
        self._go_on(endpoint.name)

    def erased(self, markers: Mapping[int, Row]) -> None:
        """The contents of these messages are no more."""
        for pump in self._pumps.values():
            pump.erased(markers)

    def consumer_bound(self, endpoint: Endpoint) -> None:
        """A consumer came: more may lie ahead of it than of nobody."""
        pump = self._pumps.get(endpoint.name)
        if pump is not None:
            self._loop.call_soon(pump.run)

    def subscriptions_changed(self, endpoint: Endpoint) -> None:
        """
        A replay goes on by the new ones, from where it is. One that has read all it had to keeps what it put by the
        others, after a restart, too, which has it read again.
        """
        pump, replay = self._pumps.get(endpoint.name), endpoint.replay
        if pump is not None and not pump.is_over:
            pump.subscriptions_changed()
        elif replay is not None and replay.is_under_way:
            has_read = not replay.is_reading and replay.live_from is not None
            position = replay.live_from if has_read else replay.position
            assert position is not None
            self._committer.commit(self._broker.replay_commands.subscriptions_changed(endpoint, position))

    def acknowledged(self, endpoint: Endpoint) -> None:
        """Messages left an endpoint whose replay was under way."""
        self._go_on(endpoint.name)
        self.completed(endpoint)

    def reached_end(self, endpoint: Endpoint) -> None:
        """A replay has reached the end of the log."""
        self._say("replay_read", endpoint)
        self.records.save_progress(endpoint)
        self.completed(endpoint)

    def completed(self, endpoint: Endpoint) -> None:
        """Say so, once, if the endpoint's replay is complete."""
        replay = endpoint.replay
        if replay is None or not replay.completed(self._now_ms()):
            return
        self._committer.commit([endpoint.replay_definition()])
        self.records.completed(endpoint)
        self._say("replay_completed", endpoint)
        if self._tracing is not None:
            self._tracing.replay_ended(endpoint.name, replay)

    def check_blocked(self, endpoint: Endpoint) -> None:
        """
        Consumers with selectors have looked at all that is there: if a replay waits for them to take what they do not
        want, it would wait for ever, and somebody should know (Solace, "Replaying to Exclusive Queues").
        """
        self.is_hungry(endpoint)
        replay = endpoint.replay
        if replay is None or replay.is_blocked or not replay.is_under_way or replay.outstanding <= 0:
            return
        pump = self._pumps.get(endpoint.name)
        if pump is not None and not (pump.is_over or pump.is_full):
            return
        flows = endpoint.active_flows
        if any(flow.candidates is None or flow.candidates or flow.unsettled for flow in flows):
            return
        replay.blocked()
        self._log.warning(
            "replay_blocked_by_selector",
            **{
                log_keys.ENDPOINT: endpoint.name,
                log_keys.REPLAY_STATE: replay.state.value,
                log_keys.MESSAGES: replay.outstanding,
                log_keys.REASON: "no consumer's selector takes these replayed messages; "
                "the replay completes when another consumer takes them, or by force",
            },
        )

    def _say(self, event: str, endpoint: Endpoint, **more: object) -> None:
        replay = endpoint.replay
        assert replay is not None
        self._log.info(
            event,
            **{
                log_keys.ENDPOINT: endpoint.name,
                log_keys.REPLAY_STATE: replay.state.value,
                log_keys.MESSAGES: replay.put,
                log_keys.ELAPSED_MS: self._now_ms() - replay.started_ms,
                **more,
            },
        )
