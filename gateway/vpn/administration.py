"""
The commands of administrators to a Message VPN, for every interface that offers them.

Every command is durable when it returns. Commands that read the log do so off the loop, page by page, after other work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from amqp_ext.message.fields import priority_of
from amqp_ext.replay_start import Missing, ReplayStart, StartKind
from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.endpoint.settings import EndpointKind, EndpointSettings
from gateway.core.errors import ErrorCode, Refused
from gateway.core.model import CONTENT, HELD, TOPIC, ReplayRequest
from gateway.core.replay.records import ReplayRecords
from gateway.core.replay.starts import Resolved
from gateway.vpn.log import ends_of
from gateway.vpn.message_vpn import MessageVpn
from gateway.vpn.replay_preview import Preview, check_guard, preview, unlogged_on
from store.errors import WriteFailed

START_TRIES: Final = 3
"""How often a start is resolved again because it was trimmed while the messages to keep were being searched for."""


class Administration:
    """Commands to one Message VPN. Each Message VPN has one, as copies wait for each other here."""

    def __init__(self, vpn: MessageVpn) -> None:
        self.vpn = vpn
        self._copying = asyncio.Lock()

    # --- endpoints --------------------------------------------------------------------------------------------

    def find(self, name: str, *kinds: EndpointKind) -> Endpoint:
        """
        The endpoint of this name.

        Raises:
            Refused: NOT_FOUND, there is no endpoint of this name and of these kinds.
        """
        endpoint = self.vpn.endpoints.by_name.get(name)
        if endpoint is None or endpoint.kind not in kinds:
            raise Refused(ErrorCode.NOT_FOUND, f"there is no {kinds[0].value} {name!r}")
        return endpoint

    async def create(
        self, name: str, kind: EndpointKind, settings: EndpointSettings, subscriptions: Sequence[str] = ()
    ) -> Endpoint:
        """
        Create an endpoint.

        Raises:
            Refused: As ``Endpoints.create``.
        """
        endpoint = self.vpn.endpoints.create(name, kind, settings, subscriptions)
        await self.vpn.committer.committed()
        return endpoint

    async def change(self, endpoint: Endpoint, settings: EndpointSettings) -> None:
        """
        Change an endpoint's settings; its messages stay.

        Raises:
            Refused: PRECONDITION_FAILED, the configuration has its settings; NOT_ALLOWED, a setting cannot change after
                the creation; INVALID_FIELD, its dead messages would come back to it.
        """
        self._check_ours(endpoint)
        self.vpn.endpoints.change(endpoint, settings)
        await self.vpn.committer.committed()
        self.vpn.endpoints.changed(endpoint)

    async def delete(self, endpoint: Endpoint) -> None:
        """
        Delete the endpoint with its messages; its consumers are detached with an error.

        Raises:
            Refused: PRECONDITION_FAILED, the configuration would bring it back.
        """
        self._check_ours(endpoint)
        self.vpn.endpoints.delete(endpoint)
        await self.vpn.committer.committed()

    @staticmethod
    def _check_ours(endpoint: Endpoint) -> None:
        if endpoint.settings.declared:
            raise Refused(
                ErrorCode.PRECONDITION_FAILED,
                f"{endpoint.name!r} is declared in the configuration, which would restore it at the next "
                "start; change it there",
            )

    async def subscribe(self, endpoint: Endpoint, subscription: str) -> None:
        """
        Add a topic subscription, or an exception (``!``).

        Raises:
            amqp_ext.topics.TopicSyntaxError: It is invalid.
            Refused: ALREADY_EXISTS, the endpoint has it; PRECONDITION_FAILED, the configuration decides.
        """
        self._check_ours(endpoint)
        if subscription in endpoint.subscriptions:
            raise Refused(
                ErrorCode.ALREADY_EXISTS,
                f"{endpoint.name!r} has the subscription {subscription!r} already",
            )
        self.vpn.endpoints.set_subscriptions(endpoint, [*endpoint.subscriptions, subscription])
        await self.vpn.committer.committed()

    async def change_topic(self, endpoint: Endpoint, topic: str) -> None:
        """
        Make this the subscription of a topic endpoint; messages that came by the old one stay.

        Raises:
            amqp_ext.topics.TopicSyntaxError: It is invalid.
            Refused: RESOURCE_LOCKED, it has a consumer, which had asked for the old one.
        """
        self._check_ours(endpoint)
        if endpoint.flows:
            raise Refused(
                ErrorCode.RESOURCE_LOCKED,
                f"topic endpoint {endpoint.name!r} has a consumer of its topic; change it when it has no "
                "consumer",
            )
        self.vpn.endpoints.set_subscriptions(endpoint, [topic])
        await self.vpn.committer.committed()

    async def unsubscribe(self, endpoint: Endpoint, subscription: str) -> None:
        """
        Remove a subscription; messages that came by it stay.

        Raises:
            Refused: NOT_FOUND, the endpoint does not have it; PRECONDITION_FAILED, the configuration decides.
        """
        self._check_ours(endpoint)
        if subscription not in endpoint.subscriptions:
            raise Refused(ErrorCode.NOT_FOUND, f"{endpoint.name!r} has no subscription {subscription!r}")
        left = [text for text in endpoint.subscriptions if text != subscription]
        self.vpn.endpoints.set_subscriptions(endpoint, left)
        await self.vpn.committer.committed()

    async def purge(self, endpoint: Endpoint) -> int:
        """
        Drop all messages of an endpoint, including those that are unsettled at consumers; the log keeps them.

        Returns:
            How many messages, or values, those were; 0 for a stream, which holds none.

        Raises:
            Refused: PRECONDITION_FAILED, a replay is under way.
        """
        vpn = self.vpn
        if endpoint.kind.is_view:
            count = endpoint.depth
            await vpn.streams.purge(endpoint)
            return count
        count = vpn.endpoints.purge(endpoint)
        await vpn.committer.committed()
        # What was being committed is committed now, and dropped, too; its publishers are told that it was accepted.
        return count + endpoint.backlog.take_dropped_on_way()

    async def copy_message(
        self, endpoint: Endpoint, message_id: int, check: Callable[[str], None] = lambda topic: None
    ) -> None:
        """
        Put one message of the log on an endpoint, in its place by id.

        Args:
            check: Called with the message's topic before the answer tells anything about the message; it may raise.

        Raises:
            Refused: START_MESSAGE_UNAVAILABLE, the log does not hold it; PRECONDITION_FAILED, the endpoint has it
                already or a replay is under way; RESOURCE_LIMIT, the endpoint is at its quota.
        """
        vpn = self.vpn
        async with self._copying:
            vpn.broker.check_copy(endpoint)
            await vpn.committer.committed()
            number, reader = endpoint.cursor_number, vpn.reader
            rows = await vpn.state.read(reader.messages, [message_id])
            if not rows or rows[0][HELD] is not None:
                raise Refused(
                    ErrorCode.START_MESSAGE_UNAVAILABLE,
                    f"message {message_id} is not in the replay log, which {vpn.broker.log_facts().holds}",
                )
            check(rows[0][TOPIC])
            if endpoint.backlog.has(rows[0]) or endpoint.cursor_number != number:
                raise Refused(
                    ErrorCode.PRECONDITION_FAILED, f"message {message_id} is on {endpoint.name!r} already"
                )
            row = rows[0]
            effect = vpn.broker.begin_copy(endpoint, row)

            def committed(error: WriteFailed | None) -> None:
                priority = priority_of(row[CONTENT])
                left = endpoint.end_copy(effect, row, priority, is_committed=error is None)
                if left:
                    vpn.committer.commit(left)
                vpn.feeds.deliver(endpoint)

            await vpn.committer.committed([effect], committed)

    # --- replay -----------------------------------------------------------------------------------------------

    async def start_replay(
        self,
        endpoint: Endpoint,
        start: ReplayStart,
        *,
        requester: str = "",
        name: str = "",
        expected: int | None = None,
        loss_at_most: int | None = None,
        keep_unlogged: bool = False,
    ) -> Resolved:
        """
        Replay the log to an endpoint, with or without consumers; this cancels a replay under way.

        Args:
            requester: Who asks.
            name: Its name on record; empty to have one made.
            expected: How many messages it is to bring; with another number nothing is done.
            loss_at_most: How many messages that the log does not have may be dropped; with more nothing is done.
            keep_unlogged: Drop none of these messages: they stay, in their places among the replayed ones.

        Raises:
            Refused: It may not start, or not there (docs/reference/refusals.md); INVALID_FIELD, the start has options
                that only clients can use; PRECONDITION_FAILED, ``expected`` or ``loss_at_most`` is not met.
        """
        vpn = self.vpn
        _check_unbounded(start)
        vpn.replays.check(endpoint, by_client=False, name=name)
        kept = None
        for _ in range(START_TRIES):
            resolved = await vpn.log.resolve_start_on(endpoint, start)
            await check_guard(
                vpn.state, endpoint, resolved, expected, None if keep_unlogged else loss_at_most
            )
            if keep_unlogged:
                kept = await unlogged_on(vpn.state, endpoint)
            if resolved.first >= vpn.broker.trimming.below or vpn.broker.history.is_archived(resolved.first):
                break
        # Await nothing between the search for the messages to keep and the start of the replay.
        if not vpn.endpoints.is_there(endpoint):
            raise Refused(ErrorCode.NOT_FOUND, f"{endpoint.name!r} was deleted meanwhile")
        vpn.replays.check(endpoint, by_client=False, name=name)
        request = ReplayRequest(requester, name, str(start))
        vpn.replays.start(endpoint, resolved.first, None, request, kept)
        await vpn.committer.committed()
        return resolved

    async def cancel_replay(self, endpoint: Endpoint, *, force_complete: bool) -> None:
        """See ``ReplayRunner.cancel``."""
        self.vpn.replays.cancel(endpoint, force_complete=force_complete)
        await self.vpn.committer.committed()

    def replay_records(self) -> ReplayRecords:
        """Replays under way, with their present progress, and past ones."""
        self.vpn.replays.records.refresh_all()
        return self.vpn.broker.replay_records

    async def preview(
        self, endpoint: Endpoint, start: ReplayStart, *, keep_unlogged: bool = False
    ) -> Preview:
        """
        What a replay from there would put on the endpoint now, without doing it.

        Args:
            keep_unlogged: As in ``start_replay``.

        Raises:
            Refused: It cannot start there, or cannot keep the messages that are to stay.
        """
        vpn = self.vpn
        _check_unbounded(start)
        if not endpoint.kind.is_view:
            vpn.replays.check(endpoint, by_client=False)
        resolved = await vpn.log.resolve_start_on(endpoint, start)
        return await preview(vpn.state, endpoint, resolved, keep_unlogged=keep_unlogged)

    # --- the log ----------------------------------------------------------------------------------------------

    async def trim_before(self, start: ReplayStart) -> int:
        """
        Trim the log up to a place that a replay start names; messages on endpoints are delivered all the same.

        Returns:
            The first id that the log has then.

        Raises:
            Refused: The place does not exist, or is in the future; PRECONDITION_FAILED, the log keeps messages until
                they are archived; INTERNAL, the store could not write.
        """
        place = start
        if start.kind in (StartKind.DATE, StartKind.AGO):
            # A time before the log is no mistake: there is nothing to trim. An id after its end is a mistake.
            place = replace(start, missing=Missing.CLAMP)
        if start.kind is StartKind.DATE and int(str(start.value)) > self.vpn.runtime.clock.now_ms():
            raise Refused(
                ErrorCode.UNKNOWN_START, "the date to trim to is in the future; name one in the past"
            )
        resolved = await self.vpn.log.resolve_start(place, (">",), with_archive=False)
        return await self.vpn.trimmer.trim_before(resolved.first)

    async def log_age(self) -> tuple[int | None, int | None]:
        """When the oldest and the newest message of the log arrived, ms since the epoch; None when it is empty."""
        log = self.vpn.broker.log
        if log.next_id <= log.first_id:
            return None, None
        oldest, newest = await self.vpn.state.read(ends_of, self.vpn.reader)
        return oldest and oldest.time_ms, newest and newest.time_ms


def _check_unbounded(start: ReplayStart) -> None:
    if start.until is not None or start.speed is not None or start.rate is not None:
        raise Refused(
            ErrorCode.INVALID_FIELD,
            "a replay by an administrator continues with live messages, at full speed: `until`, `speed` and "
            "`rate` are for clients",
        )
