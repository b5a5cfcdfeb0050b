"""Everything in a run: the cluster, the pair, clients that publish and consume all the time, and their ledger."""

from __future__ import annotations

import shutil
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import psycopg

from store.postgresql.database import schema_name
from tests.bench.generator.connection import Connection
from tests.ha.cluster import Cluster
from tests.soak.client import TAIL, accept, received
from tests.support.tcp_proxy import Proxy
from tests.support.waiting import wait_until

from .clients import Consumer, Pace, Publisher
from .ledger import Ledger
from .pair import NAMES, QUEUES, Pair, PairGateway
from .processes import Workshop

PACES: Final = (Pace(60, 0.02, None), Pace(60, 0.02, 2.0), Pace(250, 0.5, 2.0))
"""The paces of the publishers. The first one stays connected to a gateway that is stopped, and sends to it; the last
one's bursts exceed one statement."""
PATIENCES: Final = (None, 2.0)
"""The patience of each consumer, in seconds. The first one stays connected, too."""
DRAIN_SECONDS: Final = 60.0
AGAIN_SECONDS: Final = 60.0
"""Time until messages are accepted again after any fault."""


class Scene:
    """A context manager that leaves nothing behind."""

    def __init__(self, *, proxied: bool = False) -> None:
        """With ``proxied``, the gateways reach the database through proxies that can be cut."""
        self._proxied = proxied
        self._cleanup = ExitStack()
        self.ledger = Ledger()
        self.proxies: dict[str, list[Proxy]] = {}
        """The proxies of each gateway, one in front of each node."""
        self.publishers: list[Publisher] = []
        self.consumers: list[Consumer] = []
        self.workshop = self._cleanup.enter_context(Workshop())
        self.cluster = Cluster(self.workshop)
        self._pair: Pair | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for client in (*self.publishers, *self.consumers):
            client.end()
        self._cleanup.close()

    def keep_logs(self, folder: Path) -> None:
        """Copy the logs of all parts into a folder, which is emptied first, and print its name."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for log in self.workshop.folder.glob("*.log"):
            shutil.copy(log, folder / log.name)
        print(f"The logs are in {folder}.", flush=True)

    # --- the start ----------------------------------------------------------------------------------------------

    @property
    def pair(self) -> Pair:
        """The gateways, after their start."""
        assert self._pair is not None, "no gateway was started"
        return self._pair

    def start_gateways(self) -> None:
        """Start both gateways."""
        if self._proxied:
            for name in NAMES:
                self.proxies[name] = [
                    self._cleanup.enter_context(Proxy(("127.0.0.1", node.port)))
                    for node in self.cluster.nodes
                ]
        ports = [[proxy.port for proxy in self.proxies.get(name, [])] for name in NAMES]
        self._pair = Pair(
            self.workshop,
            [self.cluster.url(found) for found in ports],
            self.cluster.url(is_for="prefer-standby"),
        )
        self._cleanup.callback(self._pair.close)
        self._pair.start()

    def start_clients(self) -> None:
        """Start publishers and consumers; returns when messages are accepted."""
        addresses = self.pair.addresses
        self.ledger.mark()
        self.consumers = [
            Consumer(addresses, queue, self.ledger, patience)
            for queue, patience in zip(QUEUES, PATIENCES, strict=True)
        ]
        self.publishers = [Publisher(addresses, index, self.ledger, pace) for index, pace in enumerate(PACES)]
        self.wait_for_acceptance()

    # --- waiting ------------------------------------------------------------------------------------------------

    def wait_for_acceptance(self) -> float:
        """Wait until a message sent after the ledger's mark is accepted; returns the seconds since the mark."""
        return wait_until(lambda: self.ledger.seconds_without() or 0.0, "acceptance goes on", AGAIN_SECONDS)

    def accepted_again(self) -> float:
        """The same with a mark that is set now."""
        self.ledger.mark()
        return self.wait_for_acceptance()

    def settle(self) -> None:
        """Wait until all parts are back and messages are accepted."""
        self.cluster.wait_until_whole()
        self.pair.wait_until_whole()
        self.accepted_again()

    def watch_stopped(self, gateway: PairGateway | None) -> None:
        """From now on, deliveries of this gateway, which is stopped past its lease, on old connections are faults."""
        for consumer in self.consumers:
            consumer.stopped = None if gateway is None else "{}:{}".format(*gateway.address)

    # --- the account --------------------------------------------------------------------------------------------

    def audit(self) -> int:
        """
        Read what is new in the log and look for the accepted messages; returns how often a gateway has taken over.
        """
        accepted = self.ledger.take_accepted()
        with psycopg.connect(self.cluster.url(), autocommit=True) as connection:
            connection.execute(
                "select set_config('search_path', quote_ident(%s), false)", [schema_name("default")]
            )
            rows = connection.execute(
                "select id, substr(content, length(content) - %s) from message where id > %s order by id",
                [TAIL.size - 1, self.ledger.last_id],
            ).fetchall()
            epoch = connection.execute("select epoch from log").fetchone()
        self.ledger.read((message_id, TAIL.unpack(tail)[0]) for message_id, tail in rows)
        self.ledger.check(accepted)
        for gateway in self.pair.gateways:
            if failure := gateway.failure():
                self.ledger.fault(failure)
        assert epoch is not None
        return int(epoch[0])

    def drain(self) -> int:
        """
        Pause publishers until all outcomes are known, and let consumers take everything; returns the accepted messages.
        """
        for publisher in self.publishers:
            publisher.pauses.set()
        wait_until(
            lambda: not any(one.waiting for one in self.publishers), "outcomes of all messages", DRAIN_SECONDS
        )
        takeovers = self.audit()
        try:
            wait_until(
                lambda: not any(map(self.ledger.missing, QUEUES)), "the queues' last messages", DRAIN_SECONDS
            )
        except AssertionError as failed:
            left = {queue: len(self.ledger.missing(queue)) for queue in QUEUES}
            self.ledger.fault(f"{failed}: {left} are in the log and were not delivered")
        self.ledger.check_all(takeovers)
        accepted = len(self.ledger.accepted)
        for publisher in self.publishers:
            publisher.pauses.clear()
        return accepted

    def read_log(self, gateway: PairGateway) -> int:
        """Read the whole log as an AMQP client and compare it; returns the number of its messages."""
        host, port = gateway.address
        connection = Connection.connect(host, port, "log-reader")
        connection.attach(sender=False, address="log://>?replay-start=beginning")
        wanted = list(self.ledger.log.items())
        found: list[tuple[int, int]] = []
        deadline = time.monotonic() + DRAIN_SECONDS
        for batch in received(connection, 1_000):
            found += [(one.message_id, one.number) for one in batch]
            if batch:
                accept(connection, batch)  # the number of unsettled messages is bounded
            if len(found) >= len(wanted) or time.monotonic() > deadline:
                break
        connection.close()
        if found[: len(wanted)] != wanted:
            self.ledger.fault(
                f"a log reader of {gateway.name} got {len(found)} messages, not the {len(wanted)} of the log"
            )
        return len(found)
