"""What is measured: each function runs one set-up and returns its figures. ``rows.py`` judges them.

Invariant: every measurement starts its own servers in a folder of its own and leaves nothing running; a lost,
repeated or reordered message ends the run (``LoadFailed``) instead of making a fast figure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from . import limits
from .client import percentile
from .filled_log import fill_log
from .filled_store import fill
from .idle import allow_files, open_connections
from .listing import Listing
from .load import Load, LoadFailed, recv, send
from .server_process import ServerProcess, gateway
from .spark_log import SparkReads, raw_seconds
from .transfers import TransferBlock
from .trimming import Trimming

Figures = dict[str, float]

FAN = 10
OUTSTANDING = (100, 1000)
RESTARTS = 3


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much of everything, in messages unless said otherwise."""

    rounds: int
    bulk: int
    container: int
    single: int
    windowed: int
    fanned: int
    history: int
    spooled: int
    logged: int
    trimmed: int
    connections: int
    read: int
    queues: int


FULL = Sizes(
    rounds=3,
    bulk=200_000,
    container=50_000,
    single=2_000,
    windowed=50_000,
    fanned=50_000,
    history=200_000,
    spooled=1_000_000,
    logged=10_000_000,
    trimmed=1_000_000,
    connections=5_000,
    read=1_000_000,
    queues=10_000,
)
QUICK = Sizes(
    rounds=1,
    bulk=20_000,
    container=10_000,
    single=300,
    windowed=10_000,
    fanned=5_000,
    history=20_000,
    spooled=10_000,
    logged=100_000,
    trimmed=100_000,
    connections=500,
    read=20_000,
    queues=1_000,
)


def generator(_folder: Path, sizes: Sizes) -> Figures:
    """The load generator against a peer that does nothing, and the octets of its messages alone."""
    with ServerProcess("tests.bench.null_peer") as peer:
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
    config = folder / "gateway.toml"
    config.write_text('[vpn.default.queue.bench]\nexclusive = "wait"\n')
    count = sizes.bulk
    with gateway(folder / "data", "--config", str(config)) as server:
        publish = _charged(
            server, "publish", lambda: send(server.address, "queue://bench", count)["rate"], count
        )
        consume = _charged(
            server, "consume", lambda: recv(server.address, "queue://bench", count)["rate"], count
        )
    with gateway(folder / "data", "--config", str(config)) as server:
        log = _charged(
            server,
            "replay_log",
            lambda: recv(server.address, "log://>", count, "--start", "beginning")["rate"],
            count,
        )
        rewound = "queue://bench?replay-start=beginning"
        endpoint = _charged(
            server, "replay_endpoint", lambda: recv(server.address, rewound, count)["rate"], count
        )
    return publish | consume | log | endpoint


def latency(folder: Path, sizes: Sizes) -> Figures:
    """Send to ``accepted`` with 1, 100 and 1,000 outstanding; publish to receipt with 1 outstanding.

    Raw commits are timed right before and after the single messages they are compared with: disks have moods.
    """
    with gateway(folder / "data") as server:
        commits = limits.commit_latencies(folder / "before.db", sizes.single // 2)
        single = send(server.address, "queue://single", sizes.single, outstanding=1)
        commits += limits.commit_latencies(folder / "after.db", sizes.single // 2)
        figures = {
            "single_p50": single["p50_ms"],
            "single_p99": single["p99_ms"],
            "sqlite_commit_p50": percentile(commits, 0.5),
            "sqlite_commit_p99": percentile(commits, 0.99),
        }
        for outstanding in OUTSTANDING:
            windowed = send(server.address, "queue://windowed", sizes.windowed, outstanding=outstanding)
            figures |= {f"{outstanding}_p50": windowed["p50_ms"], f"{outstanding}_p99": windowed["p99_ms"]}
        consumer = Load(
            "recv", server.address, "queue://through", "--count", sizes.single, "--timed"
        ).attached()
        send(server.address, "queue://through", sizes.single, outstanding=1)
        through = consumer.result()
    return figures | {"through_p50": through["p50_ms"], "through_p99": through["p99_ms"]}


def fan_out(folder: Path, sizes: Sizes) -> Figures:
    """One topic into ten queues; the last queue is read to see that all of it is there."""
    config = folder / "gateway.toml"
    config.write_text(
        "".join(f'[vpn.default.queue.fan{n}]\nsubscriptions = ["bench/>"]\n' for n in range(FAN))
    )
    with gateway(folder / "data", "--config", str(config)) as server:
        rate = send(server.address, "topic://bench/fan", sizes.fanned)["rate"]
        recv(server.address, f"queue://fan{FAN - 1}", sizes.fanned)
    return {
        "fan_out": rate,
        "sqlite_fan_out": limits.write_rate(folder / "fan.db", sizes.fanned, endpoints=FAN),
    }


def beside(folder: Path, sizes: Sizes) -> Figures:
    """A queue's live traffic, alone and while a log reader goes through the history again and again."""
    count = sizes.history
    with gateway(folder / "data") as server:
        send(server.address, "topic://bench/history", count)
    with gateway(folder / "data") as server:
        alone = _live(server.address, count)
        # A reader beside live traffic is slow on purpose: each of its runs is a part, so that some are through in time.
        options = ("--count", count // 4, "--start", "beginning", "--forever")
        reader = Load("recv", server.address, "log://bench/history", *options).attached()
        accompanied = _live(server.address, count)
        read = reader.stop()
    return {"live_alone": alone, "live_beside": accompanied, "reader_beside": read["rate"]}


def recovery(folder: Path, sizes: Sizes) -> Figures:
    """From exec to the ready line, on an empty folder and on a well-filled one."""
    with gateway(folder / "empty") as server:
        empty = server.ready_seconds
    fill(folder / "data", sizes.spooled, sizes.logged)
    seconds = []
    for _ in range(RESTARTS):
        with gateway(folder / "data") as server:
            seconds.append(server.ready_seconds)
            recv(server.address, "queue://spooled", 1)
    return {"recovery": median(seconds), "start_empty": empty}


def trimming(folder: Path, sizes: Sizes) -> Figures:
    """Publishing before a million messages of the log are trimmed, and while they are."""
    fill(folder / "data", 1, sizes.trimmed)
    count = sizes.trimmed // 10
    with gateway(folder / "data") as server:
        # The first of a process are slower than those that follow.
        send(server.address, "topic://bench/warm", count)
        alone = send(server.address, "topic://bench/alone", count)["rate"]
        with Trimming(server.admin) as trimmer:
            beside = send(server.address, "topic://bench/beside", count)["rate"]
            if trimmer.is_done:
                raise LoadFailed("the log was trimmed before as much was published as was to be measured")
    return {"publish_before_trim": alone, "publish_trimming": beside, "trimmed": trimmer.rate}


def listing(folder: Path, sizes: Sizes) -> Figures:
    """Publishing to one of many queues alone, and while all of them are listed over HTTP without a pause."""
    config = folder / "gateway.toml"
    config.write_text("".join(f"[vpn.default.queue.q{number:05}]\n" for number in range(sizes.queues)))
    with gateway(folder / "data", "--config", str(config)) as server:
        # The first of a process are slower than those that follow.
        send(server.address, "queue://q00000", sizes.bulk // 4)
        alone = send(server.address, "queue://q00001", sizes.bulk)["rate"]
        calm = send(server.address, "queue://q00002", sizes.single, outstanding=1)["p99_ms"]
        with Listing(server.admin) as lister:
            beside = send(server.address, "queue://q00003", sizes.bulk)["rate"]
            busy = send(server.address, "queue://q00004", sizes.single, outstanding=1)["p99_ms"]
    return {
        "publish_before_listing": alone,
        "publish_listing": beside,
        "p99_before_listing": calm,
        "p99_listing": busy,
        "listed": lister.rate,
    }


def spark(folder: Path, sizes: Sizes) -> Figures:
    """Seconds in which Spark reads all rows of a log in each way, and what live traffic keeps while it does by url."""
    data = folder / "data"
    fill_log(data, sizes.read)
    figures = {"spark_raw": raw_seconds(data)}
    with SparkReads("path", str(data), sizes.read) as reads:
        figures |= {f"spark_path_{name}": value for name, value in reads.line().items()}
    with gateway(data) as server:
        url = f"amqp://{server.address}"
        with SparkReads("url", url, sizes.read) as reads:
            figures |= {f"spark_url_{name}": value for name, value in reads.line().items()}
        _live(server.address, sizes.history // 4)
        alone = _live(server.address, sizes.history)
        with SparkReads("url", url, sizes.read, "--forever") as reads:
            reads.line()
            # Its next query begins at full speed, until it sees live traffic.
            _live(server.address, sizes.history // 4)
            figures["spark_live_beside"] = _live(server.address, sizes.history)
        # Before and after: a machine with other guests is not the same from one minute to the next.
        figures["spark_live_alone"] = (alone + _live(server.address, sizes.history)) / 2
    return figures


def idle(folder: Path, sizes: Sizes) -> Figures:
    """Memory a connection costs that is open, has a session, and says nothing."""
    allow_files(sizes.connections)
    with gateway(folder / "data") as server:
        before = server.resident_bytes()
        with open_connections(server.address, sizes.connections):
            held = server.resident_bytes() - before
    return {"idle_kib": held / sizes.connections / 1024}


def _live(server: str, count: int) -> float:
    """Messages a second from the first's publishing to the last's receipt, both ends at work."""
    consumer = Load("recv", server, "queue://live", "--count", count).attached()
    send(server, "queue://live", count)
    return count / float(consumer.result()["through_seconds"])


def _charged(server: ServerProcess, name: str, run: Callable[[], float], count: int) -> Figures:
    """The rate that ``run`` returns, and the server's processor time a message in microseconds."""
    before = server.cpu_seconds()
    rate = run()
    return {name: rate, f"{name}_cpu_us": (server.cpu_seconds() - before) / count * 1e6}
