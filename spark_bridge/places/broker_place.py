"""A log over AMQP: the place of a broker's url."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from spark_bridge.amqp_client.broker import Broker
from spark_bridge.amqp_client.links import Receiver
from spark_bridge.amqp_client.wire import Wire
from spark_bridge.columns.record_batches import BatchBuilder
from spark_bridge.errors import Refused
from spark_bridge.places.log_link import LogLink, address, extent, extent_for, filtered_here, live, survey
from spark_bridge.places.log_place import read_live
from spark_bridge.places.selection import WHOLE_LOG, Selection, topic_filter
from store.archive.columns import ALL, Columns
from store.archive.errors import ConnectionFailed, DataLoss, LogError
from store.archive.id_range import IdRange


@dataclass(frozen=True, slots=True)
class BrokerPlace:
    """The replay log of a Message VPN of a running gateway."""

    broker: Broker

    @property
    def name(self) -> str:
        """The broker's url."""
        return self.broker.url

    def extent(self, selection: Selection) -> IdRange:
        """See ``LogPlace.extent``."""
        with Wire(self.broker) as wire:
            whole = extent(live(wire, address(selection.patterns)), self.broker.url)
            return extent_for(wire, selection.patterns, whole)

    def plan(self, selection: Selection) -> IdRange:
        """See ``LogPlace.plan``."""
        return survey(self.broker, selection)

    def read(self, selection: Selection, columns: Columns, ids: IdRange) -> Iterator[pa.RecordBatch]:
        """See ``LogPlace.read``."""
        return read_live(self, selection, columns, ids)

    def batches(
        self, selection: Selection, columns: Columns, ids: IdRange
    ) -> Iterator[tuple[pa.RecordBatch, int]]:
        """
        See ``LiveLog.batches``.

        A consumer that is slower than the broker's patience (its idle time-out) loses the connection between two
        batches; the rest is then read over a new one, as long as each brings the read forward.
        """
        patterns, rest = selection.patterns, ids
        topics = topic_filter(patterns) if filtered_here(patterns) else None
        builder = BatchBuilder(columns, topics, selection.partition)
        while rest.first <= rest.last:
            with Wire(self.broker) as wire:
                link = LogLink(wire, address(patterns), rest, patterns)
                try:
                    for page in link.pages():
                        batch, offsets = builder.batch(page)
                        link.check(offsets)
                        yield batch, link.rest.first
                    return
                except ConnectionFailed as error:
                    if link.rest == rest:
                        raise DataLoss(
                            f"Offsets {rest.first} to {rest.last} could not be read. {error.sentence}"
                        ) from error
                    rest = link.rest

    def with_messages(self, ids: IdRange) -> Iterator[tuple[pa.RecordBatch, Sequence[bytes]]]:
        """See ``store.archive.source.ArchivableLog``: messages as a log reader gets them."""
        builder = BatchBuilder(ALL)
        with Wire(self.broker) as wire:
            link = LogLink(wire, address(WHOLE_LOG.patterns), ids)
            for messages in link.pages():
                batch, offsets = builder.batch(messages)
                link.check(offsets)
                yield batch, list(messages)

    def may_be_behind(self) -> bool:
        """See ``LogPlace.may_be_behind``: it is the only one."""
        return False

    def watch(self, selection: Selection = WHOLE_LOG) -> BrokerWatch:
        """See ``LogPlace.watch``."""
        return BrokerWatch(self.broker, address(selection.patterns))


class BrokerWatch:
    """
    Asking a broker where its log ends, a hundred times a second, without a new link each time.

    Spark polls an idle stream every 10 ms. A new link each time would fill the broker's own log. So one reader stays
    attached at the live end with a credit of one: as long as nothing comes through it, nothing has changed.

    Invariant: what ``extent`` tells was true when the last link was attached, and no message that the patterns take
    has come since, except those that have not reached us yet.
    """

    def __init__(self, broker: Broker, where: str) -> None:
        self._broker = broker
        self._where = where
        self._wire: Wire | None = None
        self._link: Receiver | None = None
        self._extent = IdRange(1, 0, None)

    def extent(self) -> IdRange:
        """
        The ids the log holds.

        Raises:
            LogUnavailable: The broker is away, also after one new try.
        """
        try:
            if self._link is not None and not self._link.has_more():
                return self._extent
            if self._link is not None:
                self._link.detach()
            return self._attach()
        except (ConnectionFailed, Refused):
            self.close()
            return self._attach()

    def _attach(self) -> IdRange:
        try:
            if self._wire is None:
                self._wire = Wire(self._broker)
            self._link = None
            self._link = live(self._wire, self._where, credit=1)
            self._extent = extent(self._link, self._where)
        except LogError:
            self.close()
            raise
        return self._extent

    def close(self) -> None:
        """Let go of the connection; the next question opens a new one."""
        if self._wire is not None:
            self._wire.close()
        self._wire = self._link = None
