"""
Runs replays onto endpoints: start, pump, cancel, fail, complete.

The broker has the rules (``gateway.core.replay.commands``); this module connects them with commits, consumers, clock
and log. ``ReplayRunner`` has all replays of a Message VPN. A ``ReplayPump`` puts the log's messages on one endpoint, in
order, as far as the window allows, until it reaches live traffic. Each step reads what there is room for and has it
delivered; the log has these messages, so nothing is written. At the end of the log the endpoint gets messages by routes
again (``ReplayCommands.hand_over``). What is being committed at that moment is read as soon as it is committed, and
live messages queue behind it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from amqp_ext.message.fields import delivery_times
from gateway.core.effects import Effect
from gateway.core.endpoint.endpoint import Endpoint, Flow
from gateway.core.erasing import with_markers
from gateway.core.errors import ErrorCode, Refused
from gateway.core.model import (
    BARE,
    CANCELLED,
    CONTENT,
    FAILED,
    HELD,
    ID,
    ID_OF,
    NO_REQUEST,
    TIME_MS,
    TOPIC,
    Columns,
    ReplayRequest,
    Row,
    sizes_of,
)
from gateway.core.replay.commands import KeptMessage
from gateway.core.replay.reading import LogCursor, logged, of_topics
from gateway.core.replay.states import Replay, ReplayState
from gateway.logging import log_keys
from gateway.vpn.consumers import Consumers
from gateway.vpn.feeds.endpoint_feed import EndpointFeed, Feeds, KeptRows, floor_of, routes_of
from gateway.vpn.history import HeldMessages, LogSource
from gateway.vpn.replay_records import DELETED, REPLACED, EndpointRecords
from gateway.vpn.state import VpnPart, VpnState
from store.errors import LogTrimmed, ReadFailed, WriteFailed

ROW_BYTES: Final = 200
"""About what a message takes in addition to its content."""

STEP_ROWS = 1_000
"""Messages of the log looked at in one step."""

FEW_READY = STEP_ROWS // 2
"""With so many messages ready for a consumer no more are put: what is in memory for long leaves the processor's caches,
and long lists are slow to take from."""

T = TypeVar("T")
TRY_AGAIN_S = 1.0
"""Seconds from a failed read or write of a replay to the next try."""


class ReplayRunner(VpnPart):
    def __init__(self, state: VpnState, feeds: Feeds, consumers: Consumers) -> None:
        super().__init__(state)
        self.state = state
        self._feeds = feeds
        self._consumers = consumers
        self._log = state.runtime.log
        self._pumps: dict[str, ReplayPump] = {}
        self._stopped: dict[str, int] = {}
        """By endpoint, of replays that a stop interrupted and that are not resumed: the id below which all is put."""
        self.records = EndpointRecords(self._broker.replay_records, self._committer, self._now_ms)
        """Who replayed what."""

    def check(self, endpoint: Endpoint, *, by_client: bool, name: str = "") -> None:
        """
        Check that a replay of the endpoint may start. A consumer about to be bound asks for it, or an administrator.

        Args:
            name: The replay's requested name; empty if none was requested.

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
        request: ReplayRequest = NO_REQUEST,
        kept: Sequence[KeptMessage] | None = None,
    ) -> None:
        """
        Begin a replay that was checked: detach other flows, drop the endpoint's messages, and when that is durable, put
        the log on it from ``first`` on. Await ``Committer.committed`` before the requester is told.

        Args:
            kept: The messages that stay (``gateway.vpn.replay_preview``); None drops all.
        """
        started = Refused(
            ErrorCode.REPLAY_STARTED, f"a replay of {endpoint.name!r} was started; attach again"
        )
        self._consumers.displace_all(endpoint, started, but=requester)
        now_ms = self._now_ms()
        name = self._broker.replay_records.name_for(request.name, request.requester, now_ms)
        self._abandoned(endpoint, REPLACED)
        effects = self._broker.replay_commands.start(endpoint, first, now_ms, name, kept)
        effects += self.records.begin(endpoint, request)
        self._feeds.of(endpoint).kept.clear()
        self._pumps.pop(endpoint.name, None)
        self._stopped.pop(endpoint.name, None)
        self._say("replay_started", endpoint, **{log_keys.FIRST: first})
        self._clear(endpoint, effects)

    def _clear(self, endpoint: Endpoint, effects: list[Effect]) -> None:
        """Commit the start of a replay, which is initializing until the endpoint's messages are durably gone."""
        replay = endpoint.replay
        if replay is None or replay.state is not ReplayState.INITIALIZING:
            return

        def committed(error: WriteFailed | None) -> None:
            if endpoint.replay is not replay or replay.state is not ReplayState.INITIALIZING:
                return
            if error is not None:
                self.records.not_saved(endpoint)
                # The store keeps the effects that it could not write, and writes them with the next commit.
                self._loop.call_later(TRY_AGAIN_S, self._clear, endpoint, [])
                return
            self._broker.replay_commands.cleared(endpoint)
            if all(cursor.floor >= replay.position - 1 for cursor in endpoint.backlog.parts.values()):
                self.resume(endpoint)
            else:
                # Kept messages are put in the same way as those of a replay that a stop interrupted.
                self._loop.create_task(self._resume_stopped(endpoint))

        self._committer.commit(effects, committed)

    def restarted(self, endpoint: Endpoint) -> None:
        """Continue the endpoint's replay, if a stop interrupted one."""
        replay = endpoint.replay
        if replay is None:
            return
        self.completed(endpoint)
        self.records.restarted(endpoint)
        # Before ids that a crash took back are given out again: they would count as replayed at the next start.
        if replay.is_under_way or replay.live_from == self._broker.log.unused_id:
            self._committer.commit([endpoint.replay_definition()])
        if replay.is_reading:
            self._loop.create_task(self._resume_stopped(endpoint))

    async def _resume_stopped(self, endpoint: Endpoint, after: int | None = None) -> None:
        """
        Continue a replay that a stop interrupted. First put the messages that the log did not take and that are among
        the replayed ones; before that, read the failed deliveries of everything that is put again.

        Args:
            after: The messages that came by routes are put already up to this id; None: none of them.
        """
        replay, number = endpoint.replay, endpoint.cursor_number
        if replay is None:
            return  # It was deleted before this task ran.

        def is_still() -> bool:
            return endpoint.cursor_number == number and endpoint.replay is replay and replay.is_reading

        try:
            failed = await self.state.read(self.state.reader.attempts, number)
            if not is_still():
                return
            endpoint.note_attempts(failed)
            backlog = endpoint.backlog
            if after is None:
                after = floor_of(backlog)
            routes, read_page = routes_of(backlog), self.state.reader.routed_page
            while after + 1 < replay.position:
                page = await self.state.read(read_page, routes, after, replay.position)
                if not is_still():
                    return
                after = page.position - 1
                self._stopped[endpoint.name] = page.position
                self._put_stopped(endpoint, page.rows, page.position)
            self._put_stopped(endpoint, (), replay.position)
        except ReadFailed as error:
            self.state.runtime.report("endpoint_read_failed", error)
            self._loop.call_later(TRY_AGAIN_S, self._resume_again, endpoint, replay, after)
            return
        if set(endpoint.subscriptions) != set(replay.subscriptions[-1][1]):
            # The configuration has other subscriptions than before the stop.
            self._committer.commit(
                self._broker.replay_commands.subscriptions_changed(endpoint, replay.position)
            )
        self.resume(endpoint)

    def _resume_again(self, endpoint: Endpoint, replay: Replay, after: int | None) -> None:
        if endpoint.replay is replay and replay.is_reading:
            self._loop.create_task(self._resume_stopped(endpoint, after))

    def _put_stopped(self, endpoint: Endpoint, rows: Sequence[Row], below: int) -> None:
        """Put what came by routes, or is here by references, below an id: it precedes what the replay puts next."""
        backlog, feed = endpoint.backlog, self._feeds.of(endpoint)
        rows = [row for row in rows if row[ID] not in backlog.put.references and backlog.has(row)]
        if not self._broker.replay_commands.put_again(endpoint, rows, below):
            return
        ids = [row[ID] for row in rows]
        if rows and feed.kept.size_bytes < self.share_bytes():
            # Further contents are read again when they are handed out.
            feed.kept.keep(ids, rows)
        feed.run()

    def resume(self, endpoint: Endpoint) -> None:
        """Continue a replay that is active."""
        self._stopped.pop(endpoint.name, None)
        pump = self._pumps[endpoint.name] = ReplayPump(self, self._feeds.of(endpoint))
        self._loop.call_soon(pump.run)

    def share_bytes(self) -> int:
        """How much content each replay may keep ahead of consumers."""
        return self.state.runtime.tuning.replay_ahead_bytes // max(len(self._pumps), 1)

    def is_hungry(self, endpoint: Endpoint) -> None:
        """Consumers can take more than the endpoint's replay has put there."""
        pump = self._pumps.get(endpoint.name)
        if pump is not None and pump.waits_for_hunger:
            self._loop.call_soon(pump.feed_hungry)

    def cancel(self, endpoint: Endpoint, *, force_complete: bool = False) -> None:
        """
        End the replay under way, as an administrator. If it is cancelled, unsettled replayed messages leave the
        endpoint, and consumers are detached with an error. If it is forced to complete, replayed messages stay,
        consumers continue, and what it has not read yet is not put. Either way the endpoint is live from now on.

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
        """A replay cannot continue: its consumers are detached with an error, and the endpoint is live again."""
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
        # Before the pump reads, no message that came by routes was put, except those put again after a stop.
        stopped = self._stopped.pop(endpoint.name, 0)
        position = stopped if pump is None else pump.position
        effects = self._broker.replay_commands.fail(endpoint, reason, self._now_ms(), position)
        self._feeds.of(endpoint).kept.clear()
        self.records.end(endpoint, CANCELLED if is_cancelled else FAILED, reason)
        self._say(
            "replay_cancelled" if is_cancelled else "replay_failed", endpoint, **{log_keys.REASON: reason}
        )
        if self._tracing is not None:
            self._tracing.replay_ended(endpoint.name, replay, reason)
        self._committer.commit(effects, lambda _: self._feeds.deliver(endpoint))

    def leaving(self, found: Sequence[tuple[int, str]]) -> None:
        """
        Retention rules are about to remove these messages, (id, topic) with rising ids, from the middle of the log: a
        replay that was still to put some of them fails, and that is durable before they are gone.
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
                    "the log was trimmed during the replay: a retention rule removes messages from id "
                    f"{position} on",
                    ErrorCode.REPLAY_MESSAGE_UNAVAILABLE,
                )

    def forget(self, endpoint: Endpoint) -> None:
        """The endpoint is gone."""
        self._abandoned(endpoint, DELETED)
        self._pumps.pop(endpoint.name, None)
        self._stopped.pop(endpoint.name, None)

    def _abandoned(self, endpoint: Endpoint, reason: str) -> None:
        """If a replay of the endpoint is under way, it ends here, and nobody needs to be told."""
        replay = endpoint.replay
        if self._tracing is not None and replay is not None and replay.is_under_way:
            self._tracing.replay_ended(endpoint.name, replay, reason)
        self.records.end(endpoint, CANCELLED, reason)

    # --- meanwhile --------------------------------------------------------------------------------------------

    def committed(self, endpoints: Collection[str], news: Mapping[str, int]) -> None:
        """Continue all replays with what was published."""
        if news:
            self.go_on()
        self.records.committed()

    def go_on(self) -> None:
        """Continue all replays: ids that they may have waited for are committed, or never will be."""
        for name in list(self._pumps):
            self._go_on(name)

    def _go_on(self, name: str) -> None:
        pump = self._pumps.get(name)
        if pump is not None:
            pump.run()
            if pump.is_over and self._pumps.get(name) is pump:
                del self._pumps[name]

    def put_more(self, endpoint: Endpoint) -> None:
        """The ready messages of an endpoint with a replay may be running low."""
        self._go_on(endpoint.name)

    def erased(self, markers: Mapping[int, Row]) -> None:
        """The contents of these messages were erased."""
        for pump in self._pumps.values():
            pump.erased(markers)

    def consumer_bound(self, endpoint: Endpoint) -> None:
        """A consumer was bound: the replay may put more messages ahead of it than without a consumer."""
        pump = self._pumps.get(endpoint.name)
        if pump is not None:
            self._loop.call_soon(pump.run)

    def subscriptions_changed(self, endpoint: Endpoint) -> None:
        """
        A replay continues from its position by the new subscriptions. A replay that has read everything keeps what it
        has put by the old ones; this is also so after a restart, when it reads the log again.
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
        """Messages left an endpoint that has a replay, or had one; or a transaction that was to settle them failed."""
        if endpoint.replay is None or endpoint.replay.is_over:
            return
        self._go_on(endpoint.name)
        if forced := self._broker.replay_commands.end_forced(endpoint):
            self._committer.commit(forced)
        self.completed(endpoint)

    def reached_end(self, endpoint: Endpoint) -> None:
        """A replay has reached the end of the log."""
        self._say("replay_read", endpoint)
        self.records.save_progress(endpoint)
        self.completed(endpoint)

    def completed(self, endpoint: Endpoint) -> None:
        """If the endpoint's replay is complete, log and record that, once."""
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
        Consumers with selectors have looked at all ready messages. If a replay waits for them to take messages that
        they do not select, it waits for ever: log that (Solace, "Replaying to Exclusive Queues").
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
                log_keys.REASON: (
                    "no consumer's selector matches these replayed messages; the replay completes when "
                    "another consumer takes them, or by force"
                ),
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


class ReplayPump(VpnPart):
    """
    Args:
        runner: Has the pump, and is told how its replay ends.
    """

    def __init__(self, runner: ReplayRunner, feed: EndpointFeed) -> None:
        endpoint, state = feed.endpoint, runner.state
        assert endpoint.replay is not None
        super().__init__(state)
        self._runner = runner
        self._feed = feed
        self._endpoint = endpoint
        self._replay: Replay = endpoint.replay
        self._ahead = state.settings.limits.max_unsettled_per_flow
        """Messages put ahead of a bound consumer, where the endpoint has no max_unsettled of its own."""
        self._kept = ContentAhead(feed.kept, runner.share_bytes)
        self.waits_for_hunger = False
        """It keeps as much content as it may: consumers take what they can of that before it puts more."""
        self._is_hungry = False
        self._rests = False
        """A read has failed: it tries again a moment later, however often it is told of commits meanwhile."""
        self._unmarked: int | None = None
        """A message that may be the last before live, and was put before that could be known."""
        self._read_from(self._replay.position)

    def _read_from(self, position: int) -> None:
        """Read the log from here on."""
        endpoint, replay = self._endpoint, self._replay
        last = replay.live_from - 1 if replay.live_from is not None else None
        self._cursor = _ReplayCursor(endpoint, position, last)
        self._routed: list[Row] = []
        """Messages that the log did not take, and that the endpoint has by their routes: they are put in their places
        among the logged ones."""
        self._routed_bytes = 0
        patterns = {
            text: None for _, texts in replay.subscriptions for text in endpoint.topics.patterns_with(texts)
        }
        self._source = LogSource(
            self._state.history,
            position,
            tuple(patterns),
            self._woken,
            user=endpoint.settings.owner,
            held=HeldMessages(lambda: routes_of(endpoint.backlog), self._is_routed),
        )

    def _is_routed(self, row: Row) -> bool:
        """Whether the endpoint has a message by a route, and not by what the replay puts."""
        backlog, kept_up_to = self._endpoint.backlog, self._replay.kept_up_to
        return (
            # The row may have been read while the log still had the message.
            (row[HELD] is not None or row[ID] <= kept_up_to)
            and backlog.has(row)
            # Put before a stop, and kept by a reference when a rule removed it from the log: it is put already.
            and row[ID] not in backlog.put.references
        )

    def subscriptions_changed(self) -> None:
        """
        Read what was not put yet by the new subscriptions: their live messages are only in the log until then.
        """
        position = self.position
        self._committer.commit(self._broker.replay_commands.subscriptions_changed(self._endpoint, position))
        self._read_from(position)
        self._loop.call_soon(self.run)

    @property
    def position(self) -> int:
        """Everything before this id was put, or is not wanted."""
        # Logged messages that could not be put, as the log was trimmed, are gone; unlogged ones still wait here.
        return min(self._read_up_to, self._routed[0][ID]) if self._routed else self._read_up_to

    @property
    def _read_up_to(self) -> int:
        held_back = self._cursor.held_back
        return self._cursor.position if held_back is None else held_back[0]

    @property
    def is_over(self) -> bool:
        """A newer replay has taken its place, the endpoint is gone, or it has put everything."""
        return self._endpoint.replay is not self._replay or not self._replay.is_reading

    @property
    def is_full(self) -> bool:
        """It waits for messages to be settled."""
        return self._room() <= 0

    def run(self) -> None:
        """Go on as far as there is room. Called when messages were committed or settled."""
        self.waits_for_hunger = False
        while not self.is_over:
            if self._cursor.is_finished or self._replay.is_forced:
                # A forced replay ends after the transactions that are about to settle some of its messages.
                if self._cursor.is_finished or not self._endpoint.is_replay_in_doubt:
                    self._finish()
                return
            if self._rests:
                return
            room = self._room()
            if room > 0 and not self._is_hungry and self._replay.live_from is None:
                self.waits_for_hunger = self._kept.is_full
            if room <= 0 or self.waits_for_hunger:
                if not self._endpoint.flows:
                    # It may take long until a consumer comes.
                    self._source.let_go()
                return
            try:
                found = self._source.read(min(room, STEP_ROWS))
            except (LogTrimmed, ReadFailed) as error:
                self._woken(error)
                return
            if found is None:
                if not self._source.is_at_end:
                    return
                self._hand_over()
                assert self._cursor.last is not None
                if self._source.position <= self._cursor.last:
                    return
                found = (), self._source.position
            rows, position = found
            end = self._cache.next_id
            if position >= end:
                self._hand_over()
            if self._cursor.last is not None:
                # Messages that are being committed may match, too: until then the last message is not known. Messages
                # beyond these are live, even if the page has some of them already.
                end = self._cursor.last + 1
                position = min(position, end)
            columns = self._source.columns or Columns.of(rows)
            of_log = list(rows) if columns.are_logged else logged(rows)
            if len(of_log) < len(rows) or (rows and rows[0][ID] <= self._replay.kept_up_to):
                routed = [row for row in rows if row[ID] < position and self._is_routed(row)]
                self._routed += routed
                self._routed_bytes += sum(map(held_bytes, routed))
            held_back = self._cursor.held_back
            chosen, is_end = self._cursor.offer_logged(of_log, position, end, room, columns.topics)
            self._find_end(chosen, is_end=is_end)
            self._put(chosen, *_ids_and_sizes(chosen, held_back, columns))
            if chosen:
                self._is_hungry = False

    def feed_hungry(self) -> None:
        """Consumers have taken all ready messages: put one more step, however much content is kept."""
        if self.waits_for_hunger:
            self._is_hungry = True
            self.run()

    def _find_end(self, chosen: list[Row], *, is_end: bool) -> None:
        """Find out which of these is the last message before live, if one is; and whether to wait for that."""
        cursor, replay = self._cursor, self._replay
        if chosen:
            self._unmarked = None
        if is_end and replay.end_id is None:
            # After a restart it is known already, and may have been acknowledged.
            replay.found_end(chosen[-1][0])
        elif cursor.held_back is not None and self._routed_bytes >= self._runner.share_bytes():
            # Messages that the log did not take wait behind it, and there may be any number of them.
            self._unmarked = cursor.held_back[ID]
            if cursor.last is not None and cursor.position > cursor.last and replay.end_id is None:
                # It was held back only for want of room: it is the last.
                replay.found_end(self._unmarked)
            chosen.append(cursor.held_back)
            cursor.held_back = None
        elif cursor.caught_up and self._unmarked is not None and replay.end_id is None:
            # It was the last: it is marked now, if it is not delivered yet.
            replay.found_end(self._unmarked)

    def _room(self) -> int:
        if self._replay.live_from is not None:
            # Only what was being committed at the hand-over is left, and live messages wait for it.
            return STEP_ROWS
        endpoint = self._endpoint
        if not endpoint.flows:
            return self._state.runtime.tuning.replay_ahead_without_consumer - self._replay.outstanding
        if endpoint.ready.has_enough(FEW_READY):
            return 0
        return (endpoint.settings.max_unsettled or self._ahead) - self._replay.outstanding

    def erased(self, markers: Mapping[int, Row]) -> None:
        """The contents of these messages were erased."""
        self._source.erased(markers)
        self._routed = with_markers(self._routed, markers)
        self._routed_bytes = sum(map(held_bytes, self._routed))
        held_back = self._cursor.held_back
        if held_back is not None:
            (self._cursor.held_back,) = with_markers([held_back], markers)

    def _put(self, rows: list[Row], ids: list[int], sizes: list[int]) -> None:
        # Includes what was trimmed before this gateway started.
        below = max(self._broker.trimming.below, self._broker.log.first_id)
        archived = [row[ID] for row in rows if row[ID] < below] if rows and rows[0][ID] < below else []
        if archived:
            if self._state.history.archive is None:
                self._woken(LogTrimmed(archived[0], below))
                return
            is_archived = self._broker.history.is_archived
            if not (is_archived(archived[0]) and is_archived(archived[-1])):
                # It was read before it was trimmed: reading it again shows whether the archive has it.
                self._read_from(min(archived[0], self._routed[0][ID]) if self._routed else archived[0])
                return
            if not self._replay.is_archived:
                self._committer.commit(self._broker.replay_commands.reads_archive(self._endpoint))
        position = self._read_up_to
        passed = [row for row in self._routed if row[ID] < position]
        beside = 0
        if passed:
            self._routed = self._routed[len(passed) :]
            beside = sum(map(held_bytes, passed))
            self._routed_bytes -= beside
        counted = self._broker.erasing.sized(rows)
        size = sum(sizes if counted is rows else sizes_of(counted))
        routed = list(map(ID_OF, passed))
        if passed:
            rows = sorted([*rows, *passed])
            ids, sizes = list(map(ID_OF, rows)), sizes_of(rows)
        self._broker.replay_commands.put(self._endpoint, ids, rows, size, routed, position, archived)
        if rows:
            self._feed.kept.keep(ids, rows, sizes)
            self._kept.added(len(rows), size + beside)
            self._feed.run()

    def _hand_over(self) -> None:
        if self._replay.live_from is not None:
            return
        self._committer.commit(self._broker.replay_commands.hand_over(self._endpoint))
        self._cursor.last = self._broker.log.unused_id - 1

    def _finish(self) -> None:
        self._committer.commit(self._broker.replay_commands.finish_reading(self._endpoint, self.position))
        self._runner.reached_end(self._endpoint)
        self._feed.run()

    def _woken(self, error: BaseException | None) -> None:
        if self.is_over:
            return
        if isinstance(error, LogTrimmed):
            self._runner.fail(
                self._endpoint,
                f"the log was trimmed during the replay: {error}",
                ErrorCode.REPLAY_MESSAGE_UNAVAILABLE,
            )
            return
        if error is not None:
            self._state.runtime.report("log_read_failed", error)
            self._rests = True
            self._loop.call_later(TRY_AGAIN_S, self._try_again)
            return
        self.run()

    def _try_again(self) -> None:
        self._rests = False
        self.run()


def _ids_and_sizes(chosen: list[Row], held_back: Row | None, columns: Columns) -> tuple[list[int], list[int]]:
    """
    The ids and sizes of rows that were chosen.

    Args:
        held_back: The row that was held back before; if there was one, it is the first of them.
        columns: The columns of the rows that they were chosen from; they are changed here.
    """
    first = 0 if held_back is None else 1
    count = len(chosen) - first
    # Most often all were chosen, except for one at the end that is held back now. As ids rise, comparing the first and
    # the last id is enough to see that.
    if count <= 0 or not (
        count <= len(columns.ids)
        and chosen[first][ID] == columns.ids[0]
        and chosen[-1][ID] == columns.ids[count - 1]
    ):
        return list(map(ID_OF, chosen)), sizes_of(chosen)
    ids, sizes = columns.ids, columns.sizes
    if held_back is not None:
        ids.insert(0, held_back[ID])
        sizes.insert(0, len(held_back[CONTENT]))
    del ids[first + count :], sizes[first + count :]
    return ids, sizes


def is_delayed(row: Row) -> bool:
    """Whether a message of the log is one that was to be delivered later than it came."""
    return delivery_times([row[CONTENT]], [row[BARE]], row[TIME_MS]) is not None


class _ReplayCursor(LogCursor):
    """
    Chooses the messages of the log that an endpoint is to have again: they match the subscriptions that were in force
    at their ids, and are not settled.
    """

    __slots__ = ("_endpoint", "_live_from", "_matchers", "_starts")

    def __init__(self, endpoint: Endpoint, position: int, last: int | None) -> None:
        super().__init__(position, last, None, caught_up=False)
        assert endpoint.replay is not None
        self._endpoint = endpoint
        self._live_from = endpoint.replay.marked_below
        in_force = endpoint.replay.subscriptions
        self._starts = [first for first, _ in in_force]
        self._matchers = [endpoint.topics.matching(texts) for _, texts in in_force]

    def choose(self, rows: list[Row], topics: Collection[str] | None = None) -> list[Row]:
        backlog, starts, matchers = self._endpoint.backlog, self._starts, self._matchers
        replayed, references = backlog.put.replayed, backlog.put.references
        assert replayed is not None
        if rows and rows[-1][ID] >= self._live_from:
            # Delayed messages published since the replay began wait on the endpoint, and are released in time.
            rows = [row for row in rows if row[ID] < self._live_from or not is_delayed(row)]
        if len(matchers) == 1 and rows and not references and not replayed.has_done_after(rows[0][ID]):
            return of_topics(rows, matchers[0], topics)
        return [
            row
            for row in rows
            if matchers[max(bisect_right(starts, row[ID]) - 1, 0)](row[TOPIC])
            and not replayed.is_done(row[ID])
            # Put before a stop, and kept by a reference when the log was trimmed under it.
            and row[ID] not in references
        ]


@dataclass(slots=True, eq=False)
class ContentAhead:
    """Bounds the content that a replay keeps ahead. Nothing is subtracted as messages are handed out: what was kept is
    added up, and measured anew when the sum is too large."""

    _kept: KeptRows
    _most_bytes: Callable[[], int]
    """How much there may be now."""
    _size_bytes: int = 0
    """An upper bound of what is kept."""
    _looked_at: int = 0
    """The number of messages at the last measurement, if it found too much; otherwise 0."""

    def added(self, messages: int, size_bytes: int) -> None:
        """So many more messages are kept, with so much content."""
        self._size_bytes += size_bytes + messages * ROW_BYTES

    @property
    def is_full(self) -> bool:
        """Whether nothing more is to be kept for now."""
        most = self._most_bytes()
        if self._size_bytes < most:
            return False
        count = len(self._kept)
        if self._looked_at and self._looked_at * 3 < count * 4:
            return True  # too few have gone since to look again
        self._size_bytes = self._kept.size_bytes + count * ROW_BYTES
        self._looked_at = count if self._size_bytes >= most else 0
        return self._looked_at > 0


def held_bytes(row: Row) -> int:
    """What a message takes while it is held."""
    return len(row[CONTENT]) + ROW_BYTES
