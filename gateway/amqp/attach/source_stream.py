"""
An attach that reads a stream: a reader of what the stream shows of the log, by the stream's exclusivity.

The reader brings its own start, or gets the stream's default one; it is resolved here, before the answer, and is good
for a reader that has to wait for its turn, too: it reads on from there when its turn comes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from amqp_ext.filters.filter_set import Filters
from amqp_ext.replay_start import ReplayStart, parse_text
from gateway.amqp.attach.client import Client
from gateway.amqp.attach.link_setup import LinkSetup, ReadyLink
from gateway.amqp.attach.message_filter import selection_of
from gateway.amqp.attach.reply import SourceInPlace, log_values_of, reply_to_source, splicer_for
from gateway.amqp.attach.request import AttachRequest
from gateway.amqp.attach.source_consumer import NOTHING_YET
from gateway.amqp.attach.source_log import JoinGroup, pacer_for
from gateway.amqp.links.reader import Feed, ReaderLink
from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.errors import ErrorCode, Refused
from gateway.core.model import Row
from gateway.core.replay.reading import ReplayMark
from gateway.core.replay.starts import Resolved


class StreamSource(LinkSetup):
    """
    A reader of a stream.

    Args:
        options: Of the source's address.
        join: Makes it one of a group of readers.
    """

    def __init__(
        self,
        client: Client,
        request: AttachRequest,
        endpoint: Endpoint,
        start: ReplayStart | None,
        options: Mapping[str, str],
        join: JoinGroup | None = None,
    ) -> None:
        self._client = client
        self._request = request
        self._endpoint = endpoint
        self._start = start
        self._options = options
        self._join = join
        self._selects: Callable[[Row], bool] | None = None
        self._mark: ReplayMark | None = None
        self._epoch: int | None = None
        self._resolved: Resolved
        self._reader: ReaderLink
        self._feed: Feed | None = None

    @property
    def _filters(self) -> Filters:
        return self._request.filters

    async def prepare(self) -> None:
        vpn, endpoint = self._client.vpn, self._endpoint
        vpn.log.check_reads("there is nothing to read")
        if self._start is not None and self._start.name:
            self._mark = ReplayMark(self._start.name)
        self._selects = selection_of(self._client, self._filters, self._request.link.name, self._mark)
        self._epoch = self._request.epoch(self._options)
        if self._start is None and endpoint.settings.default_start:
            self._start = parse_text(endpoint.settings.default_start)
        self._resolved = await vpn.log.resolve_start_on(
            endpoint, self._start or NOTHING_YET, self._client.identity.user
        )
        if not vpn.endpoints.is_there(endpoint):
            raise Refused(ErrorCode.RESOURCE_DELETED, f"{endpoint.name!r} was deleted meanwhile")

    async def bind(self) -> ReadyLink:
        client = self._client
        splicer = splicer_for(self._filters, client.vpn.log)
        reader = self._reader = ReaderLink(
            self._request.link,
            client.carrier,
            client.identity,
            splicer,
            settles=self._join is not None,
            max_unsettled=client.limits.max_unsettled_per_flow,
        )
        if self._mark is not None:
            self._mark.below = client.vpn.broker.next_id
            reader.mark(self._mark.name, self._mark.below)
        self._feed = client.vpn.streams.read(
            self._endpoint,
            reader,
            self._resolved,
            epoch=self._epoch,
            selects=self._selects,
            pacer=pacer_for(self._start),
        )
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
            first_id=self._endpoint.settings.purged_below,
        )
        reply_to_source(self._request, in_place, self._client.vpn.log)

    def opened(self) -> None:
        assert self._feed is not None
        self._reader.begin(self._feed)

    def log_values(self) -> dict[str, Any]:
        return log_values_of(self._request.link, self._start, self._resolved)

    def release(self) -> None:
        if self._feed is not None:
            self._feed.close()
            if self._reader.lease is not None:
                self._reader.lease.release()
