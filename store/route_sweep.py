"""
Which routes a store has, and a slow look at all of them for those that no message names any more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence


class RouteSweep:
    """
    The routes that a writer knows to be stored, and how far they were looked at.

    A round of looks begins when something was committed since the last one began.
    """

    def __init__(self, numbers: Iterable[int] = ()) -> None:
        self.known = set(numbers)
        """Publishing looks here: what is not in it is written, if it is not there."""
        self.after = 0
        """Numbers up to this one were looked at in this round; 0 between rounds."""
        self._is_changed = True

    @property
    def is_due(self) -> bool:
        """There is something to be looked at."""
        return self._is_changed or self.after > 0

    def committed(self, numbers: Collection[int]) -> None:
        """A transaction was committed that wrote these routes."""
        self.known.update(numbers)
        self._is_changed = True

    def begin_look(self) -> int:
        """Look at routes with numbers above the one that is returned."""
        if not self.after:
            self._is_changed = False
        return self.after

    def looked_at(self, found: Sequence[tuple[int, bool]], most: int) -> list[int]:
        """
        Some were looked at; nobody has written meanwhile.

        Args:
            found: (number, whether no message names it), by number.
            most: As many would have been looked at.

        Returns:
            Those to be deleted. They are forgotten already: whoever publishes on one again writes it again.
        """
        self.after = found[-1][0] if len(found) == most else 0
        unnamed = [number for number, is_unnamed in found if is_unnamed]
        self.known.difference_update(unnamed)
        return unnamed
