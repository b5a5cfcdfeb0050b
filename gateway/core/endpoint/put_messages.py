"""
What was put on an endpoint, and did not come by a route: by a replay, out of the log, or by references, which lead to
copies that an administrator made and to what a replay had put and the log, or the replay, has dropped since.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence

from gateway.core.effects import (
    AddReferences,
    DropCursor,
    Effect,
    MoveCursor,
    OpenCursor,
    SettleInTransaction,
    settled_firsts,
)
from gateway.core.endpoint.cursor import Cursor
from gateway.core.model import WHOLE


class PutMessages:
    """
    A part of an endpoint's ``Backlog``.

    Args:
        cursor_number: The endpoint's cursor, by which the store knows references.
        part: Of that cursor, the first; effects that are about references alone name it.
    """

    __slots__ = (
        "_archived_done",
        "_cursor_number",
        "_orphans",
        "_part",
        "_replayed_done",
        "archived",
        "coming",
        "messages",
        "references",
        "replay_cursor_number",
        "replayed",
        "size_bytes",
    )

    def __init__(self, cursor_number: int, part: int) -> None:
        self._cursor_number = cursor_number
        self._part = part
        self.messages = 0
        """How many lie here."""
        self.size_bytes = 0
        """Their content."""
        self.replayed: Cursor | None = None
        """The cursor of the replay that puts messages here; its open ones are those that lie here."""
        self.replay_cursor_number = 0
        self.archived: set[int] = set()
        """What the replay has put that the log's archive alone has: the store has nothing of it to be let go of."""
        self.references: set[int] = set()
        self._orphans: set[int] = set()
        """References that a failed replay has left, which a transaction is about to settle."""
        self.coming: set[int] = set()
        """References to these are being committed."""
        self._replayed_done: list[int] = []
        """Settled by the replay's cursor, and not told yet."""
        self._archived_done = 0
        """The same of those that the archive alone has."""

    def resize(self, size_bytes: int) -> None:
        """Content of one of them takes so many bytes more."""
        self.size_bytes += size_bytes

    def reset(self, cursor_number: int) -> None:
        """They are gone with all that lay on the endpoint, which has another cursor."""
        self._cursor_number = cursor_number
        self.replayed = None
        self.replay_cursor_number = 0
        self.archived.clear()
        self.references.clear()
        self._orphans.clear()
        self.messages = self.size_bytes = 0

    def has_all(self, ids: list[int]) -> bool:
        """Whether a replay has put all of these, one after the other."""
        return self.replayed is not None and self.replayed.has_all(ids)

    def settle(
        self, ids: list[int], size_bytes: int, attempts: Sequence[int], *, is_run: bool = False
    ) -> list[Effect]:
        """
        Messages that a replay or references have here (rising ids) are consumed for good.

        Args:
            attempts: Those of them whose deliveries failed before.
            is_run: ``has_all`` said so of all.
        """
        self.messages -= len(ids)
        self.size_bytes -= size_bytes
        references = [i for i in ids if i in self.references] if self.references else []
        self.references.difference_update(references)
        effects: list[Effect] = []
        if references or attempts:
            effects.append(self._settle_references(references, attempts))
        if self.replayed is not None:
            replayed = (
                ids if is_run or self.replayed.has_all(ids) else [i for i in ids if self.is_replayed(i)]
            )
            for i in references:
                if not self.is_replayed(i):
                    # Put before a restart: what the archive has is read again from the cursor on, and this is in it.
                    self.replayed.add(i, i)
            if replayed:
                self.replayed.settle(replayed, is_run=is_run)
                self._replayed_done = [i for i in replayed if i not in references] if references else replayed
                self._pass_archived()
        return effects

    def _pass_archived(self) -> None:
        if self.archived:
            stored = [i for i in self._replayed_done if i not in self.archived]
            self._archived_done = len(self._replayed_done) - len(stored)
            self.archived.difference_update(self._replayed_done)
            self._replayed_done = stored

    @property
    def ids(self) -> list[int]:
        """What lies here by the replay and by references, rising."""
        return sorted(self.references if self.replayed is None else {*self.references, *self.replayed.open})

    def drop_references(self, ids: Sequence[int]) -> MoveCursor:
        """No reference is to lead to these."""
        return self._settle_references(ids, ())

    def _settle_references(self, references: Sequence[int], attempts: Sequence[int]) -> MoveCursor:
        return MoveCursor(
            self._cursor_number, self._part, None, {}, None, 0, 0, references, attempts, references
        )

    def acknowledged(self, count: int) -> MoveCursor:
        """So many messages before live were acknowledged while a replay was under way."""
        assert self.replayed is not None
        floor, ranges = self.replayed.change()
        done, self._replayed_done = self._replayed_done, []
        archived, self._archived_done = self._archived_done, 0
        return MoveCursor(
            self.replay_cursor_number, WHOLE, floor, ranges, None, -count, 0, done, archived=archived
        )

    def is_replayed(self, message_id: int) -> bool:
        """Whether the replay has put this one here, and it was not settled."""
        return self.replayed is not None and self.replayed.is_open(message_id)

    def among(self, ids: list[int]) -> set[int]:
        """Those of rising ids that a replay or references have here."""
        if not self.references:
            if self.replayed is None:
                return set()
            if self.replayed.has_all(ids):
                return set(ids)
        return {i for i in ids if self.has(i)}

    def has(self, message_id: int) -> bool:
        """Whether this one was put here, as far as that is known; else it came by a route."""
        return message_id in self.references or self.is_replayed(message_id)

    # --- in transactions --------------------------------------------------------------------------------------------

    def settle_in_transaction(
        self, ids: Collection[int], acknowledged: int, attempts: Collection[int]
    ) -> list[Effect]:
        """See ``Backlog.settle_in_transaction``, of which this is what was put here."""
        effects: list[Effect] = []
        if ids:
            references = sorted(i for i in ids if i in self.references)
            failed = [i for i in ids if i in attempts]
            effects.append(
                SettleInTransaction(
                    self._cursor_number, self._part, None, {}, None, 0, 0, references, failed, references
                )
            )
        if self.replayed is not None and (ids or acknowledged):
            replayed = sorted(i for i in ids if self.is_replayed(i))
            ranges = dict(self.replayed.ranges_of(replayed)) if replayed else {}
            done = [i for i in replayed if i not in self.references and i not in self.archived]
            archived = sum(i in self.archived for i in replayed)
            effects.append(
                SettleInTransaction(
                    self.replay_cursor_number,
                    WHOLE,
                    None,
                    ranges,
                    None,
                    -acknowledged,
                    0,
                    done,
                    archived=archived,
                )
            )
        return effects

    def settled_by_transaction(self, sizes: Mapping[int, int], written: Iterable[Effect]) -> list[Effect]:
        """
        Those that a replay or a reference had here are gone.

        Returns:
            What removes those that are newer than the transaction.
        """
        self.messages -= len(sizes)
        self.size_bytes -= sum(sizes.values())
        referenced = {i for e in written if isinstance(e, MoveCursor) for i in e.references}
        newer = [i for i in sorted(sizes) if i in self.references and i not in referenced]
        self.references.difference_update(sizes)
        self.archived.difference_update(sizes)
        replayed = sorted(i for i in sizes if self.is_replayed(i))
        if replayed:
            assert self.replayed is not None
            self.replayed.settled_elsewhere(
                replayed, settled_firsts(written, self.replay_cursor_number, WHOLE)
            )
        return [self.drop_references(newer)] if newer else []

    def orphans_settled(self, ids: Collection[int], *, is_committed: bool) -> list[Effect]:
        """A transaction is over that was to settle what a failed replay had left: either way nothing of it is here."""
        orphans = sorted(self._orphans.intersection(ids))
        self._orphans.difference_update(orphans)
        return [self.drop_references(orphans)] if orphans and not is_committed else []

    # --- replays and references -------------------------------------------------------------------------------------

    def begin_replay(self, number: int, position: int) -> list[Effect]:
        """A replay is to put messages of the log here, from ``position`` on."""
        self.replayed = Cursor(position - 1)
        self.replay_cursor_number = number
        return [OpenCursor(number, (WHOLE,), position - 1)]

    def leave_to_routes(self, ids: Iterable[int]) -> list[Effect]:
        """The replay that has just begun does not put these (rising): they lie here by their routes."""
        assert self.replayed is not None
        for i in ids:
            self.replayed.add(i, i)
        floor, ranges = self.replayed.change()
        return [MoveCursor(self.replay_cursor_number, WHOLE, floor, ranges, None, 0, 0)]

    def restore_replay(self, number: int, replayed: Cursor) -> None:
        """A replay goes on after a restart."""
        self.replayed = replayed
        self.replay_cursor_number = number

    def add(self, ids: Sequence[int], size_bytes: int, archived: Collection[int] = ()) -> None:
        """
        The replay puts these here, rising.

        Args:
            archived: Those that the log's archive alone has.
        """
        assert self.replayed is not None
        self.archived.update(archived)
        self.replayed.load(ids)
        self.messages += len(ids)
        self.size_bytes += size_bytes

    def end_replay(self) -> list[Effect]:
        """All that the replay had put is settled, or has references."""
        number, self.replay_cursor_number = self.replay_cursor_number, 0
        self.replayed = None
        self.archived.clear()
        return [DropCursor(number, 0, 0)] if number else []

    def keep(self, withdrawn: Collection[int]) -> list[Effect]:
        """
        The replay ends where it is, and what it has put stays.

        Args:
            withdrawn: Ids that transactions are about to settle: a reference that one removes is not made again.
        """
        assert self.replayed is not None
        # With those that trimming has given references to: that may not be written yet, and may fail.
        ids = [i for i in self.replayed.open if not (i in withdrawn and i in self.references)]
        self.references.update(ids)
        return [AddReferences(self._cursor_number, ids), *self.end_replay()]

    def drop(self, attempts: Collection[int], withdrawn: Collection[int]) -> tuple[list[int], list[Effect]]:
        """
        What the replay has put and was not settled is not here any more.

        Args:
            attempts: Ids whose deliveries failed before.
            withdrawn: Ids that transactions are about to settle: what becomes of them is theirs to say.

        Returns:
            Their ids, rising, and the effects.
        """
        assert self.replayed is not None
        ids = sorted({*self.replayed.open, *self.references})
        self.messages = self.size_bytes = 0
        self._orphans = self.references.intersection(withdrawn)
        references = sorted(self.references - self._orphans)
        self.references.clear()
        failed = [i for i in ids if i in attempts]
        effects: list[Effect] = []
        if references or failed:
            effects.append(self._settle_references(references, failed))
        return ids, [*effects, *self.end_replay()]

    def refer(self, ids: Collection[int], size_bytes: int) -> None:
        """References lead to these, which lie here from now on."""
        self.references.update(ids)
        self.messages += len(ids)
        self.size_bytes += size_bytes

    def keep_by_reference(self, ids: Sequence[int]) -> list[int]:
        """What was put here of these (rising, not none), which the log is about to drop: references lead to it now."""
        first, stop = ids[0], ids[-1] + 1
        found = {i for i in self.references if first <= i < stop}
        if self.replayed is not None:
            put = self.replayed.open
            found.update(put[bisect_left(put, first) : bisect_left(put, stop)])
        coming = [i for i in self.coming if first <= i < stop]
        if len(ids) < stop - first:
            leaving = set(ids)
            found &= leaving
            coming = [i for i in coming if i in leaving]
        self.references.update(found)
        self.archived.difference_update(found)
        return sorted(found.union(coming))

    def not_kept(self, ids: Iterable[int]) -> None:
        """The log has not dropped these after all: what the replay had put needs no reference."""
        self.references.difference_update([i for i in ids if self.is_replayed(i)])
