"""The places that a read's options mean: only this module tells a url, a path, a dsn and an archive apart."""

from __future__ import annotations

from spark_bridge.amqp_client.wire import Broker
from spark_bridge.errors import OptionError
from spark_bridge.options import Archived, Folder, Options, Schema
from spark_bridge.places.broker_place import BrokerPlace
from spark_bridge.places.file_place import FilePlace
from spark_bridge.places.log_place import LiveLog, LogPlace


def log_places(options: Options) -> tuple[LogPlace, ...]:
    """The logs that are read, in the order of the column ``partition``."""
    return tuple(log_place(options, number) for number in range(len(options.addresses)))


def log_place(options: Options, number: int) -> LogPlace:
    """The log that is read as this partition."""
    address = options.addresses[number]
    if isinstance(address, Archived):
        return _archive(address.url)
    log = _in_database(address) if isinstance(address, Schema) else live_log(address)
    return log if options.archive is None else _archive(options.archive, log)


def _archive(url: str, log: LiveLog | None = None) -> LogPlace:
    # Parquet and the file systems take longer to load than all else here, and few reads are of archives.
    from spark_bridge.places.archive_place import ArchivePlace  # noqa: PLC0415

    return ArchivePlace(url, log)


def live_log(address: Broker | Folder) -> BrokerPlace | FilePlace:
    """A gateway's own log, over AMQP or in the gateway's data folder."""
    return BrokerPlace(address) if isinstance(address, Broker) else FilePlace(address)


def _in_database(address: Schema) -> LiveLog:
    try:
        from spark_bridge.places.database_place import DatabasePlace  # noqa: PLC0415 - comes with an extra
    except ImportError as error:
        if not (error.name or "").startswith("psycopg"):
            raise
        raise OptionError(
            "Option dsn needs PostgreSQL's driver, here and on every worker: pip install 'rewind-gateway[postgresql]'."
        ) from error
    return DatabasePlace(address)
