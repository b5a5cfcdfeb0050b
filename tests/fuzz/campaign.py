"""
Rounds of inputs, each with a new gateway that is watched from outside: its log, its memory, a bystander. The
inputs of a finding are tried again on new gateways, reduced by halving, and written down.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

from tests.fuzz.driver import Counted, GatewayGone, Over, Plan, Progress, Sent, drive, play
from tests.fuzz.made.kind import Kind
from tests.fuzz.made.kinds import all_kinds
from tests.fuzz.target import Target
from tests.system.load import Bystander

MOST_TRIALS = 24
"""The most gateways that are started to reduce one finding; each takes about two seconds."""

_SHOWN_BYTES = 4_096

MakeTarget = Callable[[], Target]


@dataclass(slots=True)
class Finding:
    """
    Something that went wrong.

    Attributes:
        what: A sentence about it.
        suspects: Kinds and numbers of the inputs that may have caused it; empty if no input is suspected.
        log: The gateway's log lines about it.
        cause: The inputs that cause it again on a new gateway; None if it did not happen again.
    """

    what: str
    suspects: list[tuple[str, range]] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    cause: tuple[str, list[int]] | None = None


def trouble(target: Target, kind: Kind, seed: int, numbers: Sequence[int]) -> str | None:
    """Send these inputs to a gateway, on as many connections as needed; returns what went wrong, or None."""
    try:
        for first in range(0, len(numbers), kind.at_once):
            batch = numbers[first : first + kind.at_once]
            while batch:
                inputs = [kind.input(seed, number, place) for place, number in enumerate(batch)]
                played = asyncio.run(play(kind, target.addresses[kind.where], inputs))
                if played.wrong:
                    return played.wrong
                batch = batch[played.handled :]
    except GatewayGone:
        pass
    if not target.gateway.is_running:
        return "the gateway has died"
    return logged_mistake(target)


def logged_mistake(target: Target) -> str | None:
    """An error of its own that the gateway has logged, or None."""
    mistakes = target.gateway.mistakes()
    return f"the gateway logged a mistake: {mistakes[0][:500]}" if mistakes else None


def narrowed(numbers: Sequence[int], fails: Callable[[Sequence[int]], bool]) -> list[int]:
    """Halve ``numbers``, which fail, again and again; returns the smallest part that still fails."""
    left = list(numbers)
    while len(left) > 1:
        middle = len(left) // 2
        if fails(left[:middle]):
            left = left[:middle]
        elif fails(left[middle:]):
            left = left[middle:]
        else:
            break
    return left


def find_cause(finding: Finding, seed: int, make_target: MakeTarget) -> None:
    """Search the suspects for the inputs that bring the finding back, and set its ``cause``."""
    trials = MOST_TRIALS

    for name, suspects in finding.suspects:
        said: list[str] = []

        def fails(numbers: Sequence[int], name: str = name, said: list[str] = said) -> bool:
            nonlocal trials
            trials -= 1
            if trials < 0:
                return False
            with make_target() as target:
                found = trouble(target, target.kinds[name], seed, numbers)
                if found is None and target.gateway.is_running:
                    # The log comes a little later than the answers; it is complete once the gateway has ended.
                    target.gateway.stop()
                    found = logged_mistake(target)
            said += [found] if found else []
            return found is not None

        if fails(list(suspects)):
            finding.cause = (name, narrowed(list(suspects), fails))
            finding.what = f"{finding.what}; alone: {said[-1]}"
            return


def write(finding: Finding, seed: int, folder: Path, kinds: dict[str, Kind]) -> Path:
    """
    Write a finding into a file: what happened, which inputs, what was sent (in hex), and the log lines.

    Returns:
        The file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    name, numbers = finding.cause or next(
        ((name, list(suspects)) for name, suspects in finding.suspects), ("gateway", [])
    )
    sent = {
        number: kinds[name].input(seed, number)[:_SHOWN_BYTES].hex()
        for number in numbers[:5]
        if name in kinds
    }
    replay = f"./run soak fuzz --seed {seed} --replay {name}:{numbers[0]}-{numbers[-1]}" if numbers else None
    file = folder / f"{name}-{numbers[0] if numbers else 0}-{len(list(folder.iterdir()))}.json"
    content = asdict(finding) | {
        "suspects": [[each, kept.start, kept.stop] for each, kept in finding.suspects]
    }
    file.write_text(json.dumps(content | {"seed": seed, "replay": replay, "sent": sent}, indent=1))
    return file


MEGABYTE = 2**20
WATCH_SECONDS = 1.0
REMEMBERED = 50_000
"""This many connections are remembered with their inputs: a log line names a port, which leads to the inputs."""

SLACK_SECONDS = 90.0
"""How much longer than planned a driver may run before it is abandoned."""


@dataclass(frozen=True, slots=True)
class Settings:
    """
    The task of a campaign.

    Attributes:
        folder: The folder of its progress and its findings.
        seconds: How long it runs.
        round_seconds: How long a gateway is used before a new one is started.
        only: The kinds of input; empty for all.
        longest_wait_s: The longest that the bystander may wait.
        growth_mb: The most that the gateway's memory may grow in a round.
        most_inputs: It ends after about this many inputs; without, by time alone.
        causes: For this many findings of a round, the cause is searched by trying again.
    """

    folder: Path
    seconds: float = 600.0
    round_seconds: float = 300.0
    only: Sequence[str] = ()
    longest_wait_s: float = 0.25
    growth_mb: int = 400
    most_inputs: int | None = None
    causes: int = 3


@dataclass(slots=True)
class _Watched:
    """What was observed in a round."""

    counts: dict[str, int] = field(default_factory=dict)
    ports: OrderedDict[int, tuple[str, range]] = field(default_factory=OrderedDict)
    findings: list[Finding] = field(default_factory=list)
    over: Over | None = None
    log_start: int = 0
    longest_s: float = 0.0
    first_bytes: int = 0
    most_bytes: int = 0


class Campaign:
    """
    Args:
        say: Takes lines for who looks on.
        make_target: Starts gateways.
    """

    def __init__(
        self, settings: Settings, say: Callable[[str], None], make_target: MakeTarget = Target
    ) -> None:
        self._settings = settings
        self._say = say
        self._make_target = make_target
        self.files: list[Path] = []
        """The files of the findings."""
        self.longest_s = 0.0
        """The bystander's longest wait in all rounds."""

    @property
    def _state(self) -> Path:
        return self._settings.folder / "state.json"

    def run(self) -> int:
        """Run until the time is over; returns the number of inputs handled."""
        before = Progress(self._state).total
        stop_at = before + (self._settings.most_inputs or sys.maxsize)
        deadline = time.monotonic() + self._settings.seconds
        while (left := deadline - time.monotonic()) > 1 and Progress(self._state).total < stop_at:
            if not self._round(min(left, self._settings.round_seconds), stop_at):
                break
        progress = Progress(self._state)
        self._say(
            f"{progress.total - before:,} inputs in this run, {progress.total:,} in all: "
            + ", ".join(f"{kind} {count:,}" for kind, count in progress.counts.items())
        )
        return progress.total - before

    # --- a round ------------------------------------------------------------------------------------------------

    def _round(self, seconds: float, stop_at: int) -> bool:
        """Run one round; returns False if the driver failed, so that another round would be useless."""
        watched = _Watched()
        seed = Progress(self._state).seed
        with self._make_target() as target:
            document = target.described()
            plan = Plan(self._state, target.addresses, document, self._settings.only, seconds, stop_at)
            try:
                with Bystander(target.gateway, target.bystander()) as bystander:
                    self._watch(target, bystander, plan, watched)
            except AssertionError as error:
                if target.gateway.is_running:
                    watched.findings.append(Finding(f"the bystander failed: {error}"[:2_000]))
            self._judge_end(target, watched)
        self.longest_s = max(self.longest_s, watched.longest_s)
        kinds = all_kinds(document)
        for number, finding in enumerate(watched.findings):
            if number < self._settings.causes:
                find_cause(finding, seed, self._make_target)
            file = write(finding, seed, self._settings.folder / "findings", kinds)
            self.files.append(file)
            self._say(f"FOUND: {finding.what[:300]} ({file})")
        return watched.over is not None

    def _watch(self, target: Target, bystander: Bystander, plan: Plan, watched: _Watched) -> None:
        ours, theirs = multiprocessing.Pipe(duplex=False)
        # Spawned: a forked process would inherit the bystander's thread and socket.
        driver = multiprocessing.get_context("spawn").Process(target=drive, args=(plan, theirs), daemon=True)
        driver.start()
        theirs.close()
        give_up = time.monotonic() + plan.seconds + SLACK_SECONDS
        watched.first_bytes = target.gateway.resident_bytes()
        last = dict(Progress(self._state).counts)
        last_s = shown_s = time.monotonic()
        try:
            while (
                watched.over is None
                and time.monotonic() < give_up
                and driver.is_alive()
                and target.gateway.is_running
            ):
                self._take(ours, watched)
                self._look(target, watched)
                watched.longest_s = max(watched.longest_s, bystander.longest_s)
                if time.monotonic() - shown_s >= 10 and watched.counts:
                    now = time.monotonic()
                    self._show(target, bystander, watched, last, now - last_s)
                    last, last_s, shown_s = dict(watched.counts), now, now
                    bystander.longest_s = 0.0
            self._take(ours, watched, WATCH_SECONDS * 3)
            self._look(target, watched)
            if watched.over is None and target.gateway.is_running:
                watched.findings.append(Finding("the driver has failed, or did not end"))
        finally:
            driver.join(5)
            if driver.is_alive():
                driver.kill()
            ours.close()

    def _take(self, pipe: Connection, watched: _Watched, seconds: float = WATCH_SECONDS) -> None:
        """Receive what the driver reports, for about this many seconds."""
        until = time.monotonic() + seconds
        while watched.over is None and pipe.poll(max(0.0, until - time.monotonic())):
            try:
                told = pipe.recv()
            except EOFError:
                return
            match told:
                case Counted(counts):
                    watched.counts = counts
                case Sent(kind, numbers, port, wrong):
                    watched.ports[port] = (kind, numbers)
                    watched.ports.move_to_end(port)
                    while len(watched.ports) > REMEMBERED:
                        watched.ports.popitem(last=False)
                    if wrong is not None:
                        watched.findings.append(Finding(wrong, [(kind, numbers)]))
                case Over():
                    watched.over = told
            if time.monotonic() > until:
                return

    def _look(self, target: Target, watched: _Watched) -> None:
        """Look at new log lines and at the memory."""
        size = target.gateway.log_size()
        mistakes = target.gateway.mistakes(watched.log_start)
        watched.log_start = size
        watched.findings += [
            Finding(f"the gateway logged a mistake: {line[:300]}", [], [line]) for line in mistakes[:5]
        ]
        # The log line may come before the driver has reported what it sent from that port.
        for finding in watched.findings:
            if finding.log and not finding.suspects:
                suspect = watched.ports.get(_port_of(finding.log[0]))
                finding.suspects = [suspect] if suspect else []
        if not target.gateway.is_running:
            return
        resident = target.gateway.resident_bytes()
        watched.most_bytes = max(watched.most_bytes, resident)

    def _show(
        self, target: Target, bystander: Bystander, watched: _Watched, last: dict[str, int], seconds: float
    ) -> None:
        rates = {kind: (count - last.get(kind, 0)) / seconds for kind, count in watched.counts.items()}
        by_kind = " ".join(f"{kind} {rate:,.0f}" for kind, rate in rates.items() if rate)
        memory = target.gateway.resident_bytes() / MEGABYTE
        self._say(
            f"{sum(watched.counts.values()):,} inputs, {sum(rates.values()):,.0f}/s ({by_kind});"
            f" gateway {memory:.0f} MB; the bystander's longest wait {bystander.longest_s:.3f} s"
        )

    def _judge_end(self, target: Target, watched: _Watched) -> None:
        if not target.gateway.is_running:
            under_way = watched.over.under_way if watched.over else []
            watched.findings.append(Finding("the gateway has died", under_way, [target.gateway.log_tail()]))
            return
        settings = self._settings
        grown = (watched.most_bytes - watched.first_bytes) / MEGABYTE
        if grown > settings.growth_mb:
            watched.findings.append(Finding(f"the gateway grew by {grown:.0f} MB in {watched.counts}"))
        if watched.longest_s > settings.longest_wait_s:
            watched.findings.append(
                Finding(
                    f"the bystander waited {watched.longest_s:.3f} s, more than {settings.longest_wait_s} s"
                )
            )
        if (problem := target.stop()) is not None:
            watched.findings.append(Finding(problem, [], [target.gateway.log_tail()]))


def _port_of(line: str) -> int:
    """The peer's port in a log line; 0 if there is none."""
    try:
        peer = json.loads(line).get("peer", "")
        return int(str(peer).rpartition(":")[2] or 0)
    except ValueError:
        return 0
