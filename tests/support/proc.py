"""What proc(5) has of processes: which there are, whose children they are, what they use."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

PROC = Path("/proc")


def stat(pid: int) -> list[str]:
    """What is said of a process, from behind its command's name, which may hold anything; nothing when it is gone."""
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def is_alive(pid: int) -> bool:
    """Whether it runs; one that has ended and is not yet waited for does not."""
    return stat(pid)[:1] not in ([], ["Z"])


def everything() -> list[int]:
    """All processes that there are."""
    return [int(folder.name) for folder in PROC.glob("[0-9]*")]


def family(pid: int) -> list[int]:
    """A process, and all that it and its own have started."""
    parents = {one: int(found[1]) for one in everything() if (found := stat(one))}
    tree = [pid]
    for each in tree:
        tree += [child for child, parent in parents.items() if parent == each]
    return tree


def resident_bytes(pids: Iterable[int]) -> int:
    """Memory that processes hold now (VmRSS); what they share counts more than once, one that is gone not at all."""
    pages = 0
    for pid in pids:
        try:
            pages += int((PROC / str(pid) / "statm").read_text().split()[1])
        except OSError:
            continue
    return pages * os.sysconf("SC_PAGE_SIZE")


def cpu_seconds(pids: Iterable[int]) -> float:
    """Processor time that processes used so far, user and system, over all threads."""
    used = (int(found[11]) + int(found[12]) for pid in pids if (found := stat(pid)))
    return sum(used) / os.sysconf("SC_CLK_TCK")
