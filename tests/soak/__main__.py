"""
``./run soak load``: hours of mixed traffic on a gateway of its own. Every accepted message is accounted for.

The exit status is 1 if an accepted message was lost, arrived out of order, or arrived twice without being marked as
redelivered; or if memory, files or file descriptors grew. The folder keeps the samples as lines of JSON, the summary,
the curves as a picture, and the gateway's log.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from threading import Thread

from tests.soak.curves import Sample, Sampler, picture, sentences, table, verdicts
from tests.soak.traffic import consume, publish, read, start_pairs, subscribe
from tests.support.administration import Administration
from tests.system.gateway_process import ROOT, GatewayProcess
from tests.system.load import Bystander

from .account import Account
from .administrators import Purges, administrate, reload, scrape
from .client import Run
from .mover import move

FOLDER = ROOT / "build" / "soak-load"
MINUTES = 120.0
RATE = 800.0
QUEUES = 12
QUOTA_MB = 256
"""Quota of the log: small enough for trims from the second minute on."""
SAMPLE_SECONDS = 10.0
BYSTANDER_SECONDS = 0.05
"""Pause between two messages of the well-behaved client, whose longest wait is reported."""
BESIDE = 0.05
"""The share of the rate that each of the special queues gets."""
MOST_CHARACTERS = 500
MISTAKES = 20
"""The number of lines of the gateway's log that are shown."""

_CONFIG = """
[vpn.default.replay_log]
quota_mb = {quota}
{queues}
[vpn.default.queue.soak-full]
exclusive = "wait"
quota_messages = {full}
"""
FULL = (100, 150)
"""The quotas, in messages, between which reloads switch one queue."""


class Soak:
    """One run: a gateway, its clients, its samples."""

    def __init__(self, folder: Path, *, queues: int, rate: float, sample_seconds: float) -> None:
        """``folder`` is emptied."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self._folder = folder
        self._queues = queues
        self._rate = rate
        self._sample_seconds = sample_seconds
        tables = [f'[vpn.default.queue.soak{n}]\nexclusive = "wait"\n' for n in range(queues)]
        tables.append('[vpn.default.queue.soak-to]\nexclusive = "wait"\n')
        self._texts = tuple(
            _CONFIG.format(quota=QUOTA_MB, queues="".join(tables), full=full) for full in FULL
        )
        self.gateway = GatewayProcess(folder / "data", self._texts[0], module="gateway")
        self.run = Run(self.gateway.address)
        self.samples: list[Sample] = []
        self._url = str(self.gateway.ready["admin"])
        self._purges = Purges()
        self._purged = self.run.account("soak-purged")

    def last(self, seconds: float) -> None:
        """Run for this long, then have all that is owed delivered, and stop the gateway."""
        publishers, consumers = self._start()
        try:
            with Bystander(self.gateway, pause_s=BYSTANDER_SECONDS) as bystander:
                self._watch(bystander, time.monotonic() + seconds)
        except AssertionError as error:
            self.run.problems.append(f"the bystander failed: {error}"[:MOST_CHARACTERS])
        self.run.end(publishers, consumers)
        self._close_accounts()
        with Administration(self._url) as administration:
            left = administration.monitor("topicEndpoints")
        if left:
            self.run.problems.append(f"subscriptions are left that were given up: {left}"[:MOST_CHARACTERS])
        status = self.gateway.stop()
        if status:
            self.run.problems.append(f"the gateway ended with status {status}")
        self.run.problems += [f"the gateway said: {line}" for line in self.gateway.mistakes()[:MISTAKES]]

    def _watch(self, bystander: Bystander, ends: float) -> None:
        """Take samples until the end, or until something is wrong."""
        sampler = Sampler(self.gateway, bystander)
        path = self._folder / "samples.jsonl"
        with path.open("w") as file, Administration(self._url) as administration:
            due = time.monotonic()
            while time.monotonic() < ends and self.gateway.is_running and not self.run.faults():
                due += self._sample_seconds
                time.sleep(max(0.0, min(due, ends) - time.monotonic()))
                self.samples.append(sampler.sample(administration.get("/metrics")))
                file.write(json.dumps(self.samples[-1]) + "\n")
                file.flush()

    def _start(self) -> tuple[list[Thread], list[Thread]]:
        """Start the clients; returns the threads that end with publishing, and those that end when nothing is owed."""
        run, url = self.run, self._url
        publishers, consumers = start_pairs(run, [f"soak{n}" for n in range(self._queues)], self._rate)
        beside = max(self._rate * BESIDE, 1.0)

        def publish_to(account: Account, name: str) -> None:
            publishers.append(run.start(publish, account, f"queue://{name}", beside, len(publishers)))

        def consume_from(account: Account, name: str, *more: str | float | None) -> None:
            consumers.append(run.start(consume, account, f"queue://{name}", 1_000 + len(consumers), *more))

        full, moved, selected = map(run.account, ("soak-full", "moved", "soak-selected"))
        publish_to(full, "soak-full")
        consume_from(full, "soak-full", None, 0.0, beside / 2)
        publish_to(moved, "soak-from")
        consumers.append(run.start(move, "queue://soak-from", "queue://soak-to", 1))
        consume_from(moved, "soak-to", None, 0.0)
        publish_to(selected, "soak-selected")
        for part in ("even", "odd"):
            consume_from(selected, "soak-selected", f"part = '{part}'", 0.0)
        publish_to(self._purged, "soak-purged")
        consumers.append(run.start(self._purges.purge, url, "soak-purged"))
        for seed in range(2):
            publishers.append(run.start(read, seed))
            publishers.append(run.start(subscribe, f"topic://soak/{seed}", seed))
            publishers.append(run.start(administrate, url, seed))
        publishers.append(run.start(scrape, url))
        file = self.gateway.data.with_name(f"{self.gateway.data.name}.toml")
        publishers.append(run.start(reload, url, self.gateway.pid, file, self._texts))
        return publishers, consumers

    def _close_accounts(self) -> None:
        run, purged = self.run, self._purged
        least, most = purged.accepted_count, purged.accepted_count + len(purged.doubtful)
        if not least <= self._purges.count <= most:
            run.problems.append(
                f"{self._purges.count} messages were purged, {least} to {most} had been put there"
            )
        run.close_accounts(purged)

    def summary(self) -> tuple[str, bool]:
        """The text of the summary, and whether all is well."""
        run = self.run
        found = verdicts(self.samples)
        counts = {
            "accepted": sum(account.accepted_count for account in run.accounts),
            "rejected": sum(account.rejected_count for account in run.accounts),
            "received": sum(account.received_count for account in run.accounts),
            "redelivered": sum(account.redelivered_count for account in run.accounts),
            "in doubt": sum(len(account.doubtful) for account in run.accounts),
            **run.counts,
        }
        lines = [table(self.samples), "", ", ".join(f"{name} {count:,}" for name, count in counts.items())]
        lines += sentences(found) or ["too short a run to say whether anything grows"]
        lines += [f"FAULT: {fault}" for fault in run.faults()]
        return "\n".join(lines) + "\n", not run.faults() and all(one.is_flat for one in found)

    def write(self) -> bool:
        """Write the report into the folder and to stdout; returns whether all is well."""
        text, is_well = self.summary()
        (self._folder / "summary.txt").write_text(text)
        (self._folder / "curves.svg").write_text(picture(self.samples))
        print(text, end="", flush=True)
        return is_well


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; returns the exit status."""
    parser = argparse.ArgumentParser(prog="./run soak load", description=__doc__)
    parser.add_argument("--minutes", type=float, default=MINUTES, help="minutes of traffic (%(default)g)")
    parser.add_argument("--rate", type=float, default=RATE, help="messages a second, roughly (%(default)g)")
    parser.add_argument("--queues", type=int, default=QUEUES, help="queues (%(default)s)")
    parser.add_argument(
        "--folder",
        type=Path,
        default=FOLDER,
        help="folder for data and results; emptied first (build/soak-load)",
    )
    options = parser.parse_args(arguments)
    soak = Soak(
        options.folder.absolute(), queues=options.queues, rate=options.rate, sample_seconds=SAMPLE_SECONDS
    )
    try:
        soak.last(options.minutes * 60)
    finally:
        if soak.gateway.is_running:
            soak.gateway.kill()
    return 0 if soak.write() else 1


if __name__ == "__main__":
    sys.exit(main())
