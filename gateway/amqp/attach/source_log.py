"""
An attach that reads the replay log: a reader of the topics that match, history first, then live.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from amqp_ext.filters.filter_set import Filters
from amqp_ext.replay_start import ReplayStart
from gateway.amqp.attach.client import Client
from gateway.amqp.attach.link_setup import LinkSetup, ReadyLink
from gateway.amqp.attach.message_filter import selection_of
from gateway.amqp.attach.reply import SourceInPlace, log_values_of, reply_to_source, splicer_for
from gateway.amqp.attach.request import AttachRequest
from gateway.amqp.attach.source_consumer import NOTHING_YET
from gateway.amqp.links.reader import ReaderLink
from gateway.amqp.nodes.lease import Lease
from gateway.core.model import Row
from gateway.core.replay.reading import Pacer, ReplayMark
from gateway.core.replay.starts import Resolved

JoinGroup: TypeAlias = "Callable[[ReaderLink], Lease]"
"""Called with a reader before it is answered: its place in its group of readers; raises Refused if it may not read."""


def pacer_for(start: ReplayStart | None) -> Pacer | None:
    """The pace that a replay is to have, if one is asked for."""
    return Pacer(start.speed, start.rate) if start is not None and (start.speed or start.rate) else None


class LogSource(LinkSetup):
    """
    A log reader.

    Args:
        patterns: The topics that it reads.
        join: Makes it one of a group of readers.
    """

    def __init__(
        self,
        client: Client,
        request: AttachRequest,
        patterns: Sequence[str],
        start: ReplayStart | None,
        join: JoinGroup | None = None,
    ) -> None:
        self._client = client
        self._request = request
        self._patterns = patterns
        self._start = start
        self._join = join
        self._selects: Callable[[Row], bool] | None = None
        self._mark: ReplayMark | None = None
        self._resolved: Resolved
        self._wants_batches = False
        self._reader: ReaderLink | None = None

    @property
    def _filters(self) -> Filters:
        return self._request.filters

    async def prepare(self) -> None:
        vpn = self._client.vpn
        vpn.log.check_reads("there is nothing to read")
        if self._start is not None and self._start.name:
            self._mark = ReplayMark(self._start.name)
        self._selects = selection_of(self._client, self._filters, self._request.link.name, self._mark)
        self._resolved = await vpn.log.resolve_start(
            self._start or NOTHING_YET, self._patterns, self._client.identity.user
        )

    async def bind(self) -> ReadyLink:
        client, request = self._client, self._request
        splicer = splicer_for(self._filters, client.vpn.log)
        reader = self._reader = ReaderLink(
            request.link,
            client.carrier,
            client.identity,
            splicer,
            settles=self._join is not None,
            max_unsettled=client.limits.max_unsettled_per_flow,
        )
        if self._mark is not None:
            self._mark.below = client.vpn.broker.next_id
            reader.mark(self._mark.name, self._mark.below)
        self._wants_batches = request.wants_batches
        if self._join is not None:
            reader.lease = self._join(reader)
        return reader

    def reply(self) -> None:
        in_place = SourceInPlace(
            self._request.address,
            self._filters,
            self._resolved,
            copies=True,
            settles=self._join is not None,
            batches=self._wants_batches,
            taken_below=self._client.vpn.broker.retention.taken_below(self._patterns),
        )
        is_said = reply_to_source(self._request, in_place, self._client.vpn.log)
        assert self._reader is not None
        self._reader.transfers.in_batches = self._wants_batches and is_said

    def opened(self) -> None:
        assert self._reader is not None
        self._reader.begin(
            self._client.vpn.readers.read_log(
                self._resolved, self._patterns, self._reader, self._selects, pacer_for(self._start)
            )
        )

    def log_values(self) -> dict[str, Any]:
        return log_values_of(self._request.link, self._start, self._resolved)

    def release(self) -> None:
        if self._reader is not None and self._reader.lease is not None:
            self._reader.lease.release()
