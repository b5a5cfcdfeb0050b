"""How many messages a second: the generator, the limits, the Container queue, and one queue of a gateway."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from pathlib import Path

from amqp_ext.addresses.address import queue_topic
from gateway.config import Vpn
from gateway.config.vpn import Queue
from tests.bench import limits
from tests.bench.filled_store import numbered, publish_into
from tests.bench.generator.transfers import TransferBlock
from tests.bench.load import recv, send
from tests.bench.server_process import ServerProcess, gateway

from .sizes import Figures, Sizes


def generator(_folder: Path, sizes: Sizes) -> Figures:
    """The load generator against a peer that does nothing, and the octets of its messages alone."""
    with ServerProcess("tests.bench.generator.null_peer") as peer:
        return {
            "generator_send": send(peer.address, "null", 2 * sizes.bulk)["rate"],
            "generator_recv": recv(peer.address, "null", 2 * sizes.bulk)["rate"],
            "generator_single_p50": send(peer.address, "null", sizes.single, outstanding=1)["p50_ms"],
            "loopback": limits.loopback_rate(2 * sizes.bulk, TransferBlock(256).stride),
        }


def sqlite(folder: Path, sizes: Sizes) -> Figures:
    """Raw SQLite: the gateway's rows without the gateway."""
    written = folder / "written.db"
    return {"sqlite_write": limits.write_rate(written, sizes.bulk), "sqlite_read": limits.read_rate(written)}


def container(_folder: Path, sizes: Sizes) -> Figures:
    """The Container-style queue under the same load."""
    with ServerProcess("tests.bench.baseline") as server:
        return {
            "container_publish": send(server.address, "bench", sizes.container)["rate"],
            "container_consume": recv(server.address, "bench", sizes.container)["rate"],
        }


def queue(folder: Path, sizes: Sizes) -> Figures:
    """Publish to one queue, consume it; after a restart, with nothing in memory, replay it in both ways."""
    count, data, options = sizes.bulk, folder / "data", _exclusive_queue(folder)
    figures = _published_and_consumed(gateway(data, *options), count)
    with gateway(data, *options) as server:
        log = charged(
            server,
            "replay_log",
            lambda: recv(server.address, "log://>", count, "--start", "beginning")["rate"],
            count,
        )
        rewound = "queue://bench?replay-start=beginning"
        endpoint = charged(
            server, "replay_endpoint", lambda: recv(server.address, rewound, count)["rate"], count
        )
    return figures | log | endpoint


def before(folder: Path, sizes: Sizes) -> Figures:
    """Publish and consume as ``queue`` does, with the gateway of another checkout; its figures begin with `before_`."""
    if sizes.before is None:
        raise ValueError("there is no other checkout to measure")
    server = gateway(folder / "data", *_exclusive_queue(folder), checkout=sizes.before)
    found = _published_and_consumed(server, sizes.bulk)
    return {f"before_{name}": value for name, value in found.items()}


def many_routes(folder: Path, sizes: Sizes) -> Figures:
    """An endpoint that is subscribed to everything, beside one for each topic, and a queue of one topic alone."""
    each = {f"own{n}": Queue(subscriptions=(f"bench/{n}",)) for n in range(sizes.routes)}
    settings = Vpn(queues={"all": Queue(subscriptions=(">",)), "one": Queue(), **each})
    # One message each time, as they come from many publishers: no two neighbours are of the same topic.
    many = (
        (f"bench/{number % sizes.routes}", contents, bare)
        for number, (_, contents, bare) in enumerate(numbered("", 0, sizes.bulk, run=1))
    )
    one = numbered(queue_topic("one"), 0, sizes.bulk)
    publish_into(folder / "data", chain(one, many), settings)
    with gateway(folder / "data") as server:
        # The first of a process are slower than those that follow.
        send(server.address, "queue://warm", sizes.bulk // 4)
        recv(server.address, "queue://warm", sizes.bulk // 4)
        return {
            "one_route": recv(server.address, "queue://one", sizes.bulk)["rate"],
            "many_routes": recv(server.address, "queue://all", sizes.bulk)["rate"],
        }


def _exclusive_queue(folder: Path) -> tuple[str, str]:
    """A gateway's options for a queue that a consumer can rewind."""
    config = folder / "gateway.toml"
    config.write_text('[vpn.default.queue.bench]\nexclusive = "wait"\n')
    return "--config", str(config)


def _published_and_consumed(started: ServerProcess, count: int) -> Figures:
    with started as server:
        publish = charged(
            server, "publish", lambda: send(server.address, "queue://bench", count)["rate"], count
        )
        consume = charged(
            server, "consume", lambda: recv(server.address, "queue://bench", count)["rate"], count
        )
    return publish | consume


def charged(server: ServerProcess, name: str, run: Callable[[], float], count: int) -> Figures:
    """The rate that ``run`` returns, and the server's processor time a message in microseconds."""
    before = server.cpu_seconds()
    rate = run()
    return {name: rate, f"{name}_cpu_us": (server.cpu_seconds() - before) / count * 1e6}
