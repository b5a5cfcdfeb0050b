"""The log as an archive: how fast it is written, compacted and replayed, and what rate publishers keep meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from tests.bench.administrators import trimming
from tests.bench.filled import fill_log, numbered, publish_into
from tests.bench.processes import FROM_BEGINNING, MEGABYTE, ROOT, LoadFailed, gateway, recv, send

from .sizes import Figures, Sizes

FILE_ROWS = 10_000
"""Messages in one of the small files that are compacted."""

TOPIC = "bench/history"


def archive(folder: Path, sizes: Sizes) -> Figures:
    """Archive a log, compact its small files into large ones, and replay it from there after a trim."""
    flights = folder / "flights"
    fill_log(flights, sizes.read)
    seconds, _ = _archive(flights, folder / "whole")
    _archive(flights, folder / "small", "--rows", str(FILE_ROWS))
    compaction, peak = _rewind("archive", "compact", "--all", "--to", str(folder / "small"))
    data, place = folder / "data", folder / "archive"
    publish_into(data, numbered(TOPIC, 0, sizes.read))
    _archive(data, place)
    with gateway(data, f'[vpn.default.archive]\nfrom = "{place}"\n') as server:
        from_log = _replayed(server.address, sizes.read)
        trimming(server.admin)(threading.Event())
        replayed = _replayed(server.address, sizes.read)
    return {
        "archive": sizes.read / seconds,
        "archive-compact": compaction,
        "archive-compact-peak": peak / MEGABYTE,
        "archive-replay": replayed,
        "replay-before-trim": from_log,
    }


def archiving(folder: Path, sizes: Sizes) -> Figures:
    """Publishing alone, and while the gateway's own archiver works."""
    figures: Figures = {}
    settings = {
        "publish-unarchived": "",
        "archive-publish": f'[vpn.default.archive]\nto = "{folder}/archive"\nage_seconds = 1\n',
    }
    for figure, config in settings.items():
        with gateway(folder / figure, config) as server:
            # Warm up: the first messages of a process are slower.
            send(server.address, "topic://bench/warm", sizes.bulk // 4)
            figures[figure] = send(server.address, "topic://bench/live", 5 * sizes.bulk)["rate"]
    if not (folder / "archive").is_dir():
        raise LoadFailed("nothing was archived meanwhile")
    return figures


def _replayed(server: str, count: int) -> float:
    """Messages a second of a log reader that reads the whole log."""
    return float(recv(server, f"log://{TOPIC}", count, filters=FROM_BEGINNING)["rate"])


def _archive(data: Path, place: Path, *options: str) -> tuple[float, int]:
    return _rewind("archive", "--from", str(data), "--no-tell", "--to", str(place), *options)


def _rewind(*arguments: str) -> tuple[float, int]:
    """Run the command; returns its seconds and its peak memory in bytes."""
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "gateway", *arguments], cwd=ROOT, stdout=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise LoadFailed(f"rewind {' '.join(arguments)} ended with status {process.returncode}")
    return time.perf_counter() - began, usage.ru_maxrss * 1024
