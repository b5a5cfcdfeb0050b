"""``./run demo``: the gateway's main job on real data, end to end, in a few steps that each say PASS or FAIL.

A gateway is started as its own process in a temporary folder. Every flight out of New York in 2013 is published; a
queue takes those out of JFK; the queue is rewound to its middle; then Spark reads the whole log. Each step is checked
against the data set itself, message by message. The exit status is 0 only if every step passed. In any case the gateway
is stopped and the folder removed.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from amqp_ext.message.sections import bare_offset, message_annotations
from interop.flights import TOTAL, Flights, airlines, rows
from spark_bridge import register, set_worker_python
from spark_bridge.amqp_client.links import Receiver, Sender
from spark_bridge.amqp_client.wire import Broker, Wire
from spark_bridge.options import parse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parent.parent
READY_WITHIN = 60.0  # seconds for the gateway's first line; a cold start on a busy machine takes a few
STOP_WITHIN = 15.0  # seconds to stop when asked, before it is killed
BAR = 28  # characters
INTERRUPTS = (signal.SIGINT, signal.SIGTERM)

CONFIG = """\
# One queue that attracts every flight out of JFK. One consumer at a time is active, and may rewind the queue.
[vpn.default.queue.jfk]
exclusive = "wait"
subscriptions = ["flights/JFK/>"]
"""


class Wrong(Exception):
    """A check of the demo did not hold."""


def check(holds: bool, sentence: str) -> None:
    """Raise Wrong with the sentence unless it holds."""
    if not holds:
        raise Wrong(sentence)


class Progress:
    """A bar for one long action: redrawn on a terminal, a line each quarter elsewhere. Remembers the rate."""

    def __init__(self, what: str, total: int) -> None:
        self._what, self._total = what, total
        self._started = time.monotonic()
        self._terminal = sys.stdout.isatty()
        self._next = 0.0  # share of the total at which to draw again
        self.rate = 0.0

    def __call__(self, done: int) -> None:
        share = done / max(1, self._total)
        if share < self._next and done < self._total:
            return
        self._next = share + (0.005 if self._terminal else 0.25)
        self.rate = done / max(1e-9, time.monotonic() - self._started)
        filled = round(share * BAR)
        line = f"     {self._what:<11}[{'#' * filled}{'.' * (BAR - filled)}] {share:4.0%}  {done:>9,}"
        line += f"  {self.rate:>9,.0f}/s"
        if self._terminal:
            print(f"\r{line}", end="\r" if done >= self._total else "", flush=True)
            if done >= self._total:
                print(" " * len(line), end="\r", flush=True)
        else:
            print(line, flush=True)


@dataclass
class Demo:
    """The demo: its steps, and what they hand to each other."""

    folder: Path
    limit: int
    cleanup: ExitStack
    flights: Flights = field(default_factory=Flights)
    broker: Broker = field(default_factory=lambda: Broker("", 0))
    middle: str = ""
    """Replay id of the message in the middle of the queue."""

    def wire(self) -> Wire:
        """A new connection to the gateway."""
        return Wire(self.broker)

    # ------------------------------------------------------------------------------------------- the steps

    def start_gateway(self) -> str:
        """Start a gateway on a free port, in the demo's folder."""
        (self.folder / "rewind.toml").write_text(CONFIG, encoding="utf-8")
        command = [sys.executable, "-m", "gateway", "serve", "--config", str(self.folder / "rewind.toml")]
        command += ["--data", str(self.folder / "data"), "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
        began = time.monotonic()
        log = self.cleanup.enter_context((self.folder / "gateway.log").open("wb"))
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=log)
        self.cleanup.callback(stop, process)
        ready = json.loads(first_line(process))
        self.broker = parse({"url": ready["amqp"][0]}).broker
        return f"{self.broker.url}, ready in {time.monotonic() - began:.1f} s"

    def read_flights(self) -> str:
        """Read and encode the data set in advance, so that the rate of publishing does not include that."""
        progress = Progress("encoding", self.limit)
        for count, row in enumerate(rows(self.limit), start=1):
            self.flights.add(row)
            if count % 1_024 == 0 or count == self.limit:
                progress(count)
        count = len(self.flights.messages)
        check(count == self.limit, f"The data set has {count:,} flights, not {self.limit:,}.")
        size = sum(map(len, self.flights.messages))
        return f"{count:,} flights, {size / count:.0f} bytes each as AMQP messages"

    def publish(self) -> str:
        """Publish every flight to its own topic, over one link; accepted means durable."""
        messages = self.flights.messages
        progress = Progress("publishing", len(messages))
        with self.wire() as wire:
            sender = Sender(wire, None)
            accepted = sender.send(messages, progress)
            sender.detach()
        check(accepted == len(messages), f"{accepted:,} of {len(messages):,} messages were accepted.")
        return f"{accepted:,} messages accepted and durable: {progress.rate:,.0f}/s"

    def drain(self) -> str:
        """Consume the queue: it has every flight out of JFK, in order, bit for bit; then it is empty."""
        places = self.flights.from_jfk
        progress = Progress("consuming", len(places))
        with self.wire() as wire:
            messages = self._consume(Receiver(wire, "queue://jfk"), places, progress)
        self.middle = message_annotations(messages[len(messages) // 2])["x-opt-replay-id"]
        return f"{len(messages):,} messages, in order, unchanged: {progress.rate:,.0f}/s"

    def rewind(self) -> str:
        """Rewind the queue to its middle: it delivers the messages after that message's id, and nothing else."""
        places = self.flights.from_jfk[len(self.flights.from_jfk) // 2 + 1 :]
        progress = Progress("replaying", len(places))
        with self.wire() as wire:
            link = Receiver(wire, f"queue://jfk?replay-start={self.middle}")
            messages = self._consume(link, places, progress)
        last = message_annotations(messages[-1])
        check(last.get("x-opt-replay-end") is True, "The last replayed message is not marked as the last.")
        return f"{len(messages):,} messages after {self.middle}, in order: {progress.rate:,.0f}/s"

    def _consume(self, link: Receiver, places: list[int], progress: Progress) -> list[bytes]:
        """Receive exactly the messages at these places. Raises Wrong."""
        messages: list[bytes] = []
        while len(messages) < len(places):
            taken = link.receive(1_000)
            check(bool(taken), f"The link ended after {len(messages):,} of {len(places):,} messages.")
            messages += taken
            progress(min(len(messages), len(places)))
        more = len(messages) - len(places) + len(link.drain())
        check(more == 0, f"{more:,} messages came beyond the {len(places):,} expected.")
        link.detach()
        for number, (message, place) in enumerate(zip(messages, places, strict=True), start=1):
            same = message[bare_offset(message) :] == self.flights.bare(place)
            check(same, f"Message {number:,} is not the one that was published in its place.")
        return messages

    def load_into_spark(self) -> str:
        """Read the whole log as a DataFrame, and print each carrier's mean delay next to the data set's own."""
        from pyspark.sql import functions as F  # noqa: PLC0415 - only here, after everything else has passed

        spark = self.cleanup.enter_context(spark_session(self.folder))
        began = time.monotonic()
        log = spark.read.format("rewind").option("url", self.broker.url).load()
        flight = F.from_json(F.col("body").cast("string"), "carrier string, arr_delay int").alias("flight")
        delay = F.col("flight.arr_delay")
        found = {
            row["carrier"]: (row["flights"], row["mean"])
            for row in log.select(flight)
            .groupBy("flight.carrier")
            .agg(F.count("*").alias("flights"), F.avg(delay).alias("mean"))
            .collect()
        }
        rate = sum(flights for flights, _ in found.values()) / (time.monotonic() - began)
        self._print_delays(found)
        expected = {carrier: (delay.flights, delay.mean) for carrier, delay in self.flights.delays.items()}
        count = sum(flights for flights, _ in found.values())
        check(count == self.limit, f"Spark read {count:,} messages, not {self.limit:,}.")
        check(same_figures(found, expected), "Spark's figures differ from those of the data set.")
        return f"{count:,} rows, the figures agree for all {len(found)} carriers: {rate:,.0f} rows/s from a cold start"

    def _print_delays(self, found: dict[str, tuple[int, float]]) -> None:
        names = airlines()
        print("\n     Mean arrival delay in minutes     flights     Spark  data set")
        for carrier, delay in sorted(self.flights.delays.items(), key=lambda item: item[1].mean):
            flights, mean = found.get(carrier, (0, float("nan")))
            print(f"     {carrier}  {names[carrier]:<29} {flights:>8,} {mean:>9.3f} {delay.mean:>9.3f}")
        print()


def same_figures(found: dict[str, tuple[int, float]], expected: dict[str, tuple[int, float]]) -> bool:
    """Whether counts are equal, and means but for the last digit or two: both sides add integers, and divide once."""
    return found.keys() == expected.keys() and all(
        found[key][0] == count and abs(found[key][1] - mean) < 1e-9 for key, (count, mean) in expected.items()
    )


def first_line(process: subprocess.Popen[bytes]) -> bytes:
    """The line with which the gateway says that it is ready."""
    assert process.stdout is not None
    readable, _, _ = select.select([process.stdout], [], [], READY_WITHIN)
    check(bool(readable), f"The gateway did not become ready within {READY_WITHIN:.0f} seconds.")
    line = process.stdout.readline()
    check(bool(line), "The gateway stopped before it was ready.")
    return line


def stop(process: subprocess.Popen[bytes]) -> None:
    """End the gateway: by SIGTERM, or by SIGKILL if that takes too long."""
    process.terminate()
    try:
        process.wait(STOP_WITHIN)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


@contextmanager
def spark_session(folder: Path) -> Iterator[SparkSession]:
    """A local Spark that knows the format "rewind". Its messages while it starts go to a file."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - takes a second, and only this step needs it

    set_worker_python()
    # Spark's workers are processes of their own: they find this checkout by PYTHONPATH, not by our sys.path.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    settings: dict[str, Any] = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": str(folder / "spark"),
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    with stderr_to(folder / "spark.log"), undisturbed():
        builder = SparkSession.builder.master("local[*]").appName("rewind-demo").config(map=settings)
        spark = builder.getOrCreate()
    try:
        register(spark)
        yield spark
    finally:
        with suppress(Exception):  # after an interrupt it may not answer; it ends with this process
            spark.stop()


@contextmanager
def undisturbed() -> Iterator[None]:
    """Delay interrupts until the block ends: a Java process that is left while it starts never ends by itself."""
    came: list[int] = []
    before = {name: signal.signal(name, lambda number, frame: came.append(number)) for name in INTERRUPTS}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)
        for number in came[:1]:
            signal.raise_signal(number)


@contextmanager
def stderr_to(path: Path) -> Iterator[None]:
    """Send file descriptor 2 to a file: a child process that starts meanwhile keeps writing there."""
    sys.stderr.flush()
    kept = os.dup(2)
    with path.open("wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def run(demo: Demo) -> bool:
    """Run every step in order. After a failure the other steps cannot be checked, and are not run."""
    steps: list[tuple[str, Callable[[], str]]] = [
        ("Start a gateway in a temporary folder", demo.start_gateway),
        ("Read the flights out of New York in 2013", demo.read_flights),
        ("Publish each to flights/<origin>/<carrier>/<dest>", demo.publish),
        ("Drain the queue that subscribes to flights/JFK/>", demo.drain),
        ("Rewind that queue to its middle and drain it again", demo.rewind),
        ("Load the whole log into Spark", demo.load_into_spark),
    ]
    for number, (title, action) in enumerate(steps, start=1):
        print(f"{number}/{len(steps)}  {title}", flush=True)
        try:
            print(f"     PASS  {action()}", flush=True)
        except Exception as error:
            print(f"     FAIL  {error or type(error).__name__}", flush=True)
            show_logs(demo.folder)
            for later in range(number + 1, len(steps) + 1):
                print(f"{later}/{len(steps)}  {steps[later - 1][0]}\n     FAIL  not run")
            return False
    return True


def show_logs(folder: Path) -> None:
    """Print the last lines of what the gateway and Spark wrote, before the folder is removed."""
    for log in sorted(folder.glob("*.log")):
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:]
        for line in lines:
            print(f"           {log.name}: {line[:300]}")


def main(arguments: list[str] | None = None) -> int:
    """Run the demo; 0 if every step passed."""
    parser = argparse.ArgumentParser(
        prog="./run demo",
        description="Publish a year of flights to a new gateway, consume some of them, rewind their queue, and read "
        "the log with Spark. Each step is checked and prints PASS or FAIL; the exit status is 0 only if all passed.",
    )
    parser.add_argument(
        "--flights", type=int, default=TOTAL, metavar="N", help="publish only the first N (%(default)s)"
    )
    options = parser.parse_args(arguments)
    if not 10 <= options.flights <= TOTAL:
        parser.error(f"--flights takes 10 to {TOTAL}")
    # Clean up after SIGTERM, too.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    began = time.monotonic()
    passed = False
    # The cleanup undoes, in reverse order and in any case, what steps could not undo by themselves.
    with ExitStack() as cleanup:
        folder = Path(tempfile.mkdtemp(prefix="rewind-demo-"))
        cleanup.callback(shutil.rmtree, folder, ignore_errors=True)
        try:
            passed = run(Demo(folder, options.flights, cleanup))
        except KeyboardInterrupt:
            print("\n     Stopped.")
    print(f"\n{'PASS' if passed else 'FAIL'}  in {time.monotonic() - began:.0f} s")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
