"""How far each kind has come with a seed, kept in a file so that the next run goes on from there."""

from __future__ import annotations

import json
import secrets
from pathlib import Path


class Progress:
    """
    Hands out ranges of numbers, and remembers which inputs have been handled.

    Args:
        file: Where it is kept; read if it is there.
        is_fresh: Whether to begin anew, with another seed.
        seed: The seed to begin with; by chance without. One that is not the file's begins anew, too.
    """

    def __init__(self, file: Path, *, is_fresh: bool = False, seed: int | None = None) -> None:
        self._file = file
        kept = json.loads(file.read_text()) if file.exists() and not is_fresh else {}
        if seed is not None and kept.get("seed") != seed:
            kept = {}
        self.seed: int = kept.get("seed", secrets.randbelow(2**32) if seed is None else seed)
        self.counts: dict[str, int] = kept.get("counts", {})
        self._next: dict[str, int] = kept.get("next", {})
        self._left: dict[str, list[range]] = {
            kind: [range(first, stop) for first, stop in left] for kind, left in kept.get("left", {}).items()
        }
        self._taken: dict[str, list[range]] = {}

    def take(self, kind: str, most: int) -> range:
        """The next numbers of a kind: first what an earlier run or connection left."""
        left = self._left.setdefault(kind, [])
        if left:
            whole = left.pop()
            taken, rest = whole[:most], whole[most:]
            if rest:
                left.append(rest)
        else:
            first = self._next.get(kind, 0)
            taken = range(first, first + most)
            self._next[kind] = taken.stop
        self._taken.setdefault(kind, []).append(taken)
        return taken

    def finish(self, kind: str, taken: range, handled: int) -> None:
        """The first ``handled`` of what was taken have been handled; the others come again."""
        self._taken[kind].remove(taken)
        self.counts[kind] = self.counts.get(kind, 0) + handled
        if rest := taken[handled:]:
            self._left[kind].append(rest)

    def under_way(self) -> list[tuple[str, range]]:
        """What has been taken and not finished."""
        return [(kind, taken) for kind, ranges in self._taken.items() for taken in ranges]

    def save(self) -> None:
        """Write the file, whole or not at all; what is under way counts as left."""
        left = {
            kind: [
                [numbers.start, numbers.stop]
                for numbers in (*self._left.get(kind, ()), *self._taken.get(kind, ()))
            ]
            for kind in self._next
        }
        self._file.parent.mkdir(parents=True, exist_ok=True)
        beside = self._file.with_suffix(".new")
        beside.write_text(
            json.dumps({"seed": self.seed, "counts": self.counts, "next": self._next, "left": left})
        )
        beside.replace(self._file)
