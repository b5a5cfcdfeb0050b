"""
Dead letters: return them to the endpoint where they died or to an address, and count them by reason and endpoint.

Each batch leaves the dead message queue in the commit that publishes it. The job is a consumer of the queue, so it
leaves alone what is in delivery to another consumer. It takes only messages that were on the queue when it began, so a
message that dies again is not returned again. It removes the ``x-opt-dead-…`` annotations and names the message that
died in ``x-opt-replay-source-id``; the bare message stays as it was. A message that died on a topic endpoint goes to
that endpoint alone, and not to others that subscribe to its topic. A message that has nowhere to go back to stays, and
is counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final, Literal, TypeAlias

from amqp_ext.addresses.address import queue_topic, topic_endpoint_of_topic, topic_endpoint_topic
from amqp_ext.codec import CodecError, Long
from amqp_ext.message.annotations import SOURCE_ID, annotated, origin_of
from amqp_ext.message.fields import DELIVERY_ANNOTATIONS
from amqp_ext.message.sections import MessageView, message_annotations
from gateway.core.endpoint.endpoint import Endpoint, Flow
from gateway.core.endpoint.settings import EndpointKind, Exclusivity
from gateway.core.erasing import with_markers
from gateway.core.errors import ErrorCode, Refused
from gateway.core.model import BARE, CONTENT, ID, ReplayRecord, Row
from gateway.core.settlements import PendingSettlement
from gateway.vpn.clients import OwnClient
from gateway.vpn.feeds.browse_feed import EndpointListing
from gateway.vpn.jobs.job import RUNNING, Job, JobShared, check_leads_somewhere, selector_of
from store.errors import WriteFailed

DEAD_ENDPOINT: Final = "x-opt-dead-endpoint"
DEAD_REASON: Final = "x-opt-dead-reason"
DEAD_ID: Final = "x-opt-dead-sequence-number"
DEAD_ANNOTATIONS: Final = frozenset({DEAD_REASON, DEAD_ENDPOINT, "x-opt-dead-time", DEAD_ID})
BATCH_MESSAGES: Final = 256
"""Messages that leave in one commit."""

MOST_REASONS: Final = 20
"""Reasons for messages to stay that are counted apart; all further reasons are counted together."""

AT_ONCE: Final = 256
"""Messages of the first page; later pages have more."""

MOST_GROUPS: Final = 1_000
"""Groups that are counted apart; all further groups are counted as one without names."""

MOST_CHARACTERS: Final = 200
"""Characters kept of a reason or a name: a publisher may have written it."""

Key: TypeAlias = "tuple[str, str]"
"""(reason, endpoint); each is empty if the message does not say it, or if it is not asked for."""


def annotation_of(row: Row, name: str) -> str:
    """A text annotation of a message; empty if there is none that can be read."""
    try:
        found = MessageView(row[CONTENT], row[BARE]).message_annotations.get(name)
    except CodecError:
        return ""
    return found if isinstance(found, str) else ""


def _returned(content: bytes) -> tuple[bytes, int]:
    """
    A dead letter as it is sent back, and where its bare message begins. An annotation names the message that died, so
    that a consumer that handled it recognizes it.
    """
    alive, bare = annotated(content, {}, DEAD_ANNOTATIONS | DELIVERY_ANNOTATIONS)
    if origin_of(alive)[0]:
        return alive, bare
    try:
        died = message_annotations(content).get(DEAD_ID)
    except CodecError:
        return alive, bare
    if not isinstance(died, int) or isinstance(died, bool) or not 0 < died < 2**63:
        return alive, bare
    return annotated(alive, {SOURCE_ID: Long(died)})


class DeadReturn(Job):
    """
    Args:
        topic: Where the messages go; empty for the endpoint where each died.

    Raises:
        Refused: INVALID_FIELD, the selector is invalid.
    """

    def __init__(self, shared: JobShared, record: ReplayRecord, topic: str) -> None:
        super().__init__(shared, record)
        self._topic = topic
        self._selects = selector_of(record.selector, self._too_costly)
        self._flow: Flow | None = None
        self._held: list[Row] = []
        """Messages that the queue gave the job, and that it has not returned yet."""
        self._rests = False
        self._is_drained = False
        self._refused: Refused | None = None
        self._stay: dict[str, int] = {}
        self._settlement: PendingSettlement | None = None
        self._free_at = 0.0

    # --- a consumer of the queue ----------------------------------------------------------------------------------

    @property
    def client(self) -> OwnClient:
        return OwnClient(self.record.requester, f"rewind: {self.record.name}")

    def room(self) -> int:
        if self._wanted != RUNNING or self._rests or self._flow is None:
            return 0
        room = BATCH_MESSAGES - len(self._held)
        limit = self.record.limit
        return max(min(room, limit - self.record.sent - len(self._held)) if limit else room, 0)

    def send(self, rows: Sequence[Row], attempts: Mapping[int, int], end_id: int | None) -> None:
        self._held += rows
        self._is_drained = False
        self._wake()

    def nothing_to_send(self) -> None:
        if not self._held and self.room() > 0:
            self._is_drained = True
            self._wake()

    def finish(self) -> None:
        """Nothing to do: a queue has no end."""

    def refuse(self, refused: Refused) -> None:
        self._refused = refused
        self._wake()

    def _begin(self) -> None:
        record, consumers = self.record, self._shared.consumers
        endpoint = self._broker.endpoints.get(record.source)
        if endpoint is None:
            raise Refused(ErrorCode.NOT_FOUND, f"there is no queue {record.source!r} any more")
        check_is_free(endpoint)
        self._held, self._refused, self._is_drained = [], None, False
        self._stay.clear()
        self._flow = consumers.bind(endpoint, self, selects=self._wants, lock_timeout_ms=0)
        consumers.set_demand(self._flow, self.room())

    def _let_go(self) -> None:
        flow, self._flow = self._flow, None
        self._held = []
        if flow is not None:
            # No client has seen the messages, so this is not a failed delivery.
            self._shared.consumers.unbind(flow, failed=False)

    def _wants(self, row: Row) -> bool:
        if row[ID] >= self.record.end or (self._selects is not None and not self._selects(row)):
            return False
        why = self._why_not(row)
        if why:
            known = why in self._stay or len(self._stay) < MOST_REASONS
            why = why if known else "other endpoints were deleted"
            self._stay[why] = self._stay.get(why, 0) + 1
        return not why

    def _why_not(self, row: Row) -> str:
        """Why a message cannot go back; empty if it can."""
        if self._topic:
            return ""
        name = annotation_of(row, DEAD_ENDPOINT)
        if not name:
            return "they do not say where they died"
        found = self._broker.endpoints.get(name)
        if found is None:
            return f"there is no {name[:80]!r} any more"
        if found.kind.is_view:
            return f"{name[:80]!r} is a {found.kind.value}: name an address to send them to"
        return ""

    def erased(self, markers: Mapping[int, Row]) -> None:
        """The contents of these messages were erased."""
        self._held = with_markers(self._held, markers)

    # --- returning ------------------------------------------------------------------------------------------------

    async def _step(self) -> bool:
        if self._refused is not None:
            raise self._refused
        limit = self.record.limit
        if limit and self.record.sent >= limit:
            return True
        if not self._held:
            if self._is_drained:
                return True
            await self._wait()
            return False
        wait = self._free_at - self._runtime.clock.seconds()
        if wait > 0:
            await self._wait(wait)
            return False
        rows, self._held = self._held, []
        if self.record.rate is not None:
            most = max(int(self.record.rate / 10), 1)
            self._held, rows = rows[most:], rows[:most]
            self._free_at = self._runtime.clock.seconds() + len(rows) / self.record.rate
        hindrance = await self._return(rows)
        if hindrance:
            await self._rest(hindrance)
        flow = self._flow
        if flow is not None:
            # The queue's answer to this says whether there is more.
            self._is_drained = False
            self._shared.consumers.set_demand(flow, self.room())
        return False

    async def _return(self, rows: list[Row]) -> str:
        """Publish and settle as many of these as are taken; returns why some were not, or empty."""
        flow = self._flow
        assert flow is not None
        rows = [row for row in self._broker.erasing.sized(rows) if row[ID] in flow.unsettled]
        taken: list[Row] = []
        size_bytes, hindrance = 0, ""
        for topic, group in groupby(rows, key=self._topic_of):
            batch = list(group)
            contents, bares = self._contents(batch)
            count, refused = 0, None
            try:
                if topic:
                    check_leads_somewhere(topic, self._shared.endpoints)
                    self._check_takes_now(topic)
                    count, refused = self._shared.publishing.put_what_fits(topic, contents, bares)
            except Refused as found:
                refused = found
            taken += batch[:count]
            size_bytes += sum(map(len, contents[:count]))
            if count < len(batch):
                hindrance = (
                    refused.text
                    if refused is not None
                    else (f"no endpoint or log takes messages of {topic!r}")
                )
                break
        error = None
        if taken:
            ids = [row[ID] for row in taken]
            self._settlement = self._broker.settlements.begin(flow, ids)
            after = self._further(len(taken), len(taken), size_bytes)
            error = await self._commit(after, self._settlement.effects)
        if error is not None:
            hindrance = f"the store could not write: {error}"
        left = [row for row in rows if row[ID] in flow.unsettled]
        if left:
            self._held = sorted([*left, *self._held])
        return hindrance

    def _check_takes_now(self, topic: str) -> None:
        """
        Check that a topic endpoint has no replay that is behind: the replay reads the log by the endpoint's
        subscriptions, so it would not find a message on the topic used here.

        Raises:
            Refused: RESOURCE_LOCKED.
        """
        name = topic_endpoint_of_topic(topic)
        endpoint = None if name is None else self._broker.endpoints.get(name)
        if endpoint is not None and endpoint.replay is not None and endpoint.replay.is_behind:
            raise Refused(
                ErrorCode.RESOURCE_LOCKED,
                f"a replay of {name!r} is under way; messages that died on it go back after that",
            )

    def _written(self, error: WriteFailed | None) -> None:
        settlement, self._settlement = self._settlement, None
        if settlement is None:
            return
        if error is None:
            self._shared.consumers.settled_by_transaction(settlement)
        else:
            self._shared.consumers.not_settled_by_transaction(settlement)

    async def _rest(self, hindrance: str) -> None:
        """Take nothing for a while, and release the held messages, which other consumers may get meanwhile."""
        self._rests = True
        flow, consumers = self._flow, self._shared.consumers
        if flow is not None and self._held:
            held, self._held = [row[ID] for row in self._held], []
            consumers.lower_demand(flow, 0)
            consumers.release(flow, held, failed=False)
        await self._wait_for(hindrance)
        self._rests = False

    def _topic_of(self, row: Row) -> str:
        """The topic that a message goes to; empty if its endpoint was deleted since the job took it."""
        if self._topic:
            return self._topic
        endpoint = (
            None if self._why_not(row) else self._broker.endpoints.get(annotation_of(row, DEAD_ENDPOINT))
        )
        if endpoint is None:
            return ""
        is_queue = endpoint.kind is EndpointKind.QUEUE
        return queue_topic(endpoint.name) if is_queue else topic_endpoint_topic(endpoint.name)

    @staticmethod
    def _contents(rows: Sequence[Row]) -> tuple[list[bytes], list[int]]:
        returned = [_returned(row[CONTENT]) for row in rows]
        return [content for content, _ in returned], [bare for _, bare in returned]

    def _said(self) -> str:
        sent = self.record.sent
        said = f"{sent} message{'' if sent == 1 else 's'} returned{self._unknown_said}"
        stay = [f"{count} stay: {why}" for why, count in sorted(self._stay.items())]
        return "; ".join([said, *stay])


def check_is_free(queue: Endpoint) -> None:
    """
    Check that one more consumer may be bound to a queue.

    Raises:
        Refused: RESOURCE_LOCKED.
    """
    if queue.flows and queue.settings.exclusive is not Exclusivity.NONE:
        raise Refused(
            ErrorCode.RESOURCE_LOCKED,
            f"{queue.name!r} is for one consumer at a time and has a consumer; detach it first",
        )


@dataclass(slots=True)
class Group:
    """Messages with the same ``Key``."""

    messages: int = 0
    size_bytes: int = 0


async def count_dead(
    listing: EndpointListing, endpoint: Endpoint, by: Literal["reason", "endpoint", "both"]
) -> dict[Key, Group]:
    """
    The messages on a queue by why and where they died; the largest groups first.

    Raises:
        store.errors.ReadFailed: The queue cannot be read.
        Refused: REPLAY_STARTED, the queue was emptied meanwhile.
    """
    groups: dict[Key, Group] = {}
    number = endpoint.cursor_number
    async for rows in listing.pages(endpoint, 0, AT_ONCE):
        for row in rows:
            key = (
                annotation_of(row, DEAD_REASON)[:MOST_CHARACTERS] if by != "endpoint" else "",
                annotation_of(row, DEAD_ENDPOINT)[:MOST_CHARACTERS] if by != "reason" else "",
            )
            group = groups.get(key)
            if group is None:
                group = groups.setdefault(key if len(groups) < MOST_GROUPS else ("", ""), Group())
            group.messages += 1
            group.size_bytes += len(row[CONTENT])
        await asyncio.sleep(0)
    if endpoint.cursor_number != number:
        raise Refused(ErrorCode.REPLAY_STARTED, f"{endpoint.name!r} was emptied meanwhile; count again")
    return dict(sorted(groups.items(), key=lambda item: (-item[1].messages, item[0])))
