"""From the options of a read to the places it reads: the one that tells a url, a path and an archive apart."""

from __future__ import annotations

from spark_bridge.amqp_client.broker import Broker
from spark_bridge.options import Options
from spark_bridge.places.addresses import Archived, Folder
from spark_bridge.places.archived_log import ArchivedLog
from spark_bridge.places.broker_log import BrokerLog
from spark_bridge.places.file_log import FileLog
from spark_bridge.places.log_place import LogPlace


def log_places(options: Options) -> tuple[LogPlace, ...]:
    """The logs that are read, in the order of the column ``partition``."""
    return tuple(log_place(options, number) for number in range(len(options.addresses)))


def log_place(options: Options, number: int) -> LogPlace:
    """One of them."""
    address = options.addresses[number]
    if isinstance(address, Archived):
        return ArchivedLog(address.url)
    log = live_log(address)
    return log if options.archive is None else ArchivedLog(options.archive, log)


def live_log(address: Broker | Folder) -> BrokerLog | FileLog:
    """A gateway's own log."""
    return BrokerLog(address) if isinstance(address, Broker) else FileLog(address)
