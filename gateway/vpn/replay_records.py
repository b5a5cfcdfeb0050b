"""
The records of replays onto endpoints (``gateway.core.replay.records``): written when one begins, advances and ends.

The progress of a replay is written at most once a second, together with other commits; its end immediately.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from gateway.core.effects import Effect, SaveReplayRecord
from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.model import CANCELLED, COMPLETE, ENDPOINT, FAILED, ReplayRecord, ReplayRequest
from gateway.core.replay.records import ReplayRecords
from gateway.core.replay.states import ReplayState
from gateway.vpn.committer import Committer
from store.errors import WriteFailed

SAVED_EVERY_MS: Final = 1_000
WENT_ON: Final = "interrupted by a stop, and continued"
REPLACED: Final = "a new replay took its place"
DELETED: Final = "its endpoint was deleted"


@dataclass(eq=False)
class EndpointRecords:
    _records: ReplayRecords
    _committer: Committer
    _now_ms: Callable[[], int]
    _under_way: dict[str, Endpoint] = field(default_factory=dict)
    """By the names of their records."""
    _unsaved: dict[str, None] = field(default_factory=dict)
    """Names of records whose present state is not committed."""
    _saved_ms: int = 0

    def begin(self, endpoint: Endpoint, request: ReplayRequest) -> list[Effect]:
        """
        An endpoint's replay, which has its name already, begins.

        Returns:
            What is to be committed with the replay; if that fails, call ``not_saved``.
        """
        replay = endpoint.replay
        assert replay is not None
        record, effects = self._records.begin(
            ReplayRecord(
                0,
                replay.name,
                ENDPOINT,
                request.requester,
                start=request.start,
                subscriptions=tuple(endpoint.subscriptions),
                target=endpoint.name,
                state=replay.state.value,
                position=replay.position,
                started_ms=replay.started_ms,
            )
        )
        self._under_way[record.name] = endpoint
        return effects

    def not_saved(self, endpoint: Endpoint) -> None:
        """The commit of its record failed: the record is written with the next commit that succeeds."""
        if endpoint.replay is not None:
            self._unsaved[endpoint.replay.name] = None

    def refresh(self, endpoint: Endpoint, outcome: str | None = None) -> ReplayRecord | None:
        """Update the record of an endpoint's replay; returns it, or None if there is none or it has ended."""
        replay = endpoint.replay
        found = self._records.by_name.get(replay.name) if replay is not None else None
        if replay is None or found is None or found.is_ended or found.target != endpoint.name:
            return None
        record = replace(
            found,
            state=replay.state.value,
            position=replay.position,
            read=max(replay.position - replay.first, 0),
            sent=replay.put,
            size_bytes=replay.size_bytes,
            outcome=found.outcome if outcome is None else outcome,
        )
        if record != found and not record.is_ended:
            self._records.put(record)
        return record

    def refresh_all(self) -> None:
        """Update all records, before somebody looks at them."""
        for endpoint in self._under_way.values():
            self.refresh(endpoint)

    def end(self, endpoint: Endpoint, state: str, outcome: str) -> None:
        """The endpoint's replay is over."""
        record = self.refresh(endpoint)
        if record is None:
            return
        self._under_way.pop(record.name, None)
        self._save(replace(record, state=state, ended_ms=self._now_ms(), outcome=outcome))

    def completed(self, endpoint: Endpoint) -> None:
        """It is complete."""
        replay = endpoint.replay
        assert replay is not None
        forced = "it was completed by force" if replay.is_forced else "every message was acknowledged"
        self.end(endpoint, COMPLETE, forced)

    def restarted(self, endpoint: Endpoint) -> None:
        """The gateway has started, and the endpoint has, or had, a replay."""
        replay = endpoint.replay
        if replay is None or not replay.name:
            return
        if replay.is_under_way:
            record = self.refresh(endpoint, WENT_ON)
            if record is not None:
                self._under_way[replay.name] = endpoint
                self._save(record)
        elif replay.state is ReplayState.COMPLETE:
            self.completed(endpoint)
        else:
            self.end(endpoint, FAILED, replay.totals.last_failure)

    def all_restarted(self, names: Iterable[str]) -> None:
        """
        The endpoints have these replays after a start. All other replays on record went with their endpoints, as
        temporary endpoints do at a stop.
        """
        there = set(names)
        for record in list(self._records):
            if record.kind == ENDPOINT and not record.is_ended and record.name not in there:
                self._save(replace(record, state=CANCELLED, ended_ms=self._now_ms(), outcome=DELETED))

    def committed(self) -> None:
        """A commit succeeded: write the records that could not be written before, and the progress of all replays."""
        if not self._under_way and not self._unsaved:
            return
        for name in list(self._unsaved):
            record = self._records.by_name.get(name)
            if record is not None:
                self._save(record)
        self._unsaved.clear()
        now_ms = self._now_ms()
        if not 0 <= now_ms - self._saved_ms < SAVED_EVERY_MS:
            self._saved_ms = now_ms
            for endpoint in list(self._under_way.values()):
                self.save_progress(endpoint)

    def save_progress(self, endpoint: Endpoint) -> None:
        """Write the progress of an endpoint's replay, if it has changed; nobody waits for that."""
        replay = endpoint.replay
        before = self._records.by_name.get(replay.name) if replay is not None else None
        record = self.refresh(endpoint)
        if record is not None and record != before:
            self._committer.commit_when_convenient(SaveReplayRecord(record))

    def _save(self, record: ReplayRecord) -> None:
        def saved(error: WriteFailed | None) -> None:
            if error is not None:
                self._unsaved[record.name] = None

        self._committer.commit(self._records.put(record), saved)
