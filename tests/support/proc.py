"""What proc(5) says of processes: their ids, their children, their memory and processor time."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

PROC = Path("/proc")


def stat(pid: int) -> list[str]:
    """The fields of a process's stat line after the command name, which may contain anything; empty if it is gone."""
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    return stat(pid)[:1] not in ([], ["Z"])


def everything() -> list[int]:
    """The ids of all processes."""
    return [int(folder.name) for folder in PROC.glob("[0-9]*")]


def family(pid: int) -> list[int]:
    """A process and all its descendants."""
    parents = {one: int(found[1]) for one in everything() if (found := stat(one))}
    tree = [pid]
    for each in tree:
        tree += [child for child, parent in parents.items() if parent == each]
    return tree


def resident_bytes(pids: Iterable[int]) -> int:
    """Memory that the processes hold now (VmRSS). Shared memory counts once for each process; an ended one counts 0."""
    pages = 0
    for pid in pids:
        try:
            pages += int((PROC / str(pid) / "statm").read_text().split()[1])
        except OSError:
            continue
    return pages * os.sysconf("SC_PAGE_SIZE")


def cpu_seconds(pids: Iterable[int]) -> float:
    """Processor time of the processes so far, user and system, over all threads."""
    used = (int(found[11]) + int(found[12]) for pid in pids if (found := stat(pid)))
    return sum(used) / os.sysconf("SC_CLK_TCK")
