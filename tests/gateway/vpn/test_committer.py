"""What lingers on the loop before it is committed, and what takes it along."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.core.effects import CountedUpTo, Effect, Publication
from gateway.core.errors import Refused
from gateway.vpn.committer import LINGER_SECONDS, LINGERING_EFFECTS, Committer
from gateway.vpn.runtime import Counters, Runtime
from store.errors import WriteFailed
from store.ports import Batch, OnCommit
from tests.gateway.core.machines.step_loop import StepLoop
from tests.store.effects import publication


class Store:
    """A store, and its writer, that commits when the test says so."""

    def __init__(self) -> None:
        self.submitted: list[Batch] = []
        self.is_closed = False
        self.on_commit: OnCommit
        self.now: tuple[bool, WriteFailed | None] = (False, None)
        """What comes of a commit on the spot."""

    confirmed_at = None

    def start_writer(self, on_commit: OnCommit) -> Store:
        self.on_commit = on_commit
        return self

    def submit(self, batch: Batch) -> None:
        self.submitted.append(batch)

    def commit_now(
        self, batch: Batch, answer: Callable[[], None] = lambda: None
    ) -> tuple[bool, WriteFailed | None]:
        is_done, error = self.now
        if is_done and error is None:
            answer()
        return self.now

    def close(self) -> None:
        self.is_closed = True

    @property
    def effects(self) -> list[list[Effect]]:
        """Those of each batch."""
        return [list(batch.effects) for batch in self.submitted]


class Loop(StepLoop):
    """One whose threads are done at once."""

    def run_in_executor(self, executor: Any, function: Callable[..., Any], *args: Any) -> Any:
        done = self.create_future()
        done.set_result(function(*args))
        return done


class Commits:
    """A committer on a loop that the test drives."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.store = Store()
        runtime = Runtime(self.loop, SimpleNamespace(error=lambda *_, **__: None))
        self.told: list[str] = []
        publications = SimpleNamespace(
            committed=lambda _: self.told.append("broker") or (), failed=lambda _: None
        )
        broker: Any = SimpleNamespace(publications=publications)
        cache: Any = SimpleNamespace(extend=lambda *_: None, skip=lambda _: None)
        store: Any = self.store
        self.committer = Committer(store, broker, cache, Counters(), runtime)

    def tell(self, what: str, error: WriteFailed | None) -> None:
        assert error is None
        self.told.append(what)


def published(number: int, publisher: Any, delivery: int) -> Publication:
    """One message that somebody waits for."""
    found = publication(number, [b"x"], time_ms=1)
    found.receipt = (publisher, [delivery])
    return found


def effect(number: int) -> CountedUpTo:
    """One that nobody waits for."""
    return CountedUpTo(number)


@pytest.fixture
def commits() -> Iterator[Commits]:
    found = Commits()
    yield found
    found.loop.close()


def test_what_nobody_waits_for_is_gathered(commits: Commits) -> None:
    """It goes to the writer in one piece, in order, ``LINGER_SECONDS`` after the first of it."""
    first, second = effect(1), effect(2)
    commits.committer.commit_when_convenient(first)
    commits.loop.advance(LINGER_SECONDS / 2)
    commits.committer.commit_when_convenient(second)
    commits.loop.advance(LINGER_SECONDS / 4)
    assert commits.store.effects == []
    commits.loop.advance(LINGER_SECONDS / 4)
    assert commits.store.effects == [[first, second]]


def test_what_is_waited_for_takes_along_what_was_ordered_before_it(commits: Commits) -> None:
    """No time passes, order is kept, and it is told once all of that is durable."""
    before, after = effect(1), effect(2)
    commits.committer.commit_when_convenient(before)
    commits.committer.commit([after], partial(commits.tell, "after"))
    commits.loop.run()
    assert commits.store.effects == [[before, after]]
    assert commits.told == []
    commits.store.on_commit(commits.store.submitted, None)
    commits.loop.run()
    assert commits.told == ["after"]


def test_news_of_what_was_ordered_takes_it_along(commits: Commits) -> None:
    """Somebody asks, with no effect of his own, to be told once all before is durable: that a settlement is."""
    before = effect(1)
    commits.committer.commit_when_convenient(before)
    commits.committer.commit((), partial(commits.tell, "before"))
    commits.loop.run()
    assert commits.store.effects == [[before]]
    assert len(commits.store.submitted[0].then) == 1


def test_nothing_is_submitted_twice(commits: Commits) -> None:
    """What was taken along is not there any more when its time is over; what came after it goes then."""
    first, second, third = effect(1), effect(2), effect(3)
    commits.committer.commit_when_convenient(first)
    commits.committer.commit([second])
    commits.loop.run()
    commits.committer.commit_when_convenient(third)
    commits.loop.advance(LINGER_SECONDS)
    assert commits.store.effects == [[first, second], [third]]
    commits.loop.advance(LINGER_SECONDS)
    assert commits.store.effects == [[first, second], [third]]
    assert not commits.loop.has_timers


def test_a_stop_waits_for_no_company(commits: Commits) -> None:
    """What lingers is with the writer before the store is closed."""
    last = effect(1)
    commits.committer.commit_when_convenient(last)
    with commits.loop.running():
        commits.loop.create_task(commits.committer.close())
    commits.loop.run()
    assert commits.store.effects == [[last]]
    assert commits.store.is_closed


def test_what_lingers_is_bounded(commits: Commits) -> None:
    """Of ``LINGERING_EFFECTS`` none waits any longer."""
    effects = [effect(number) for number in range(LINGERING_EFFECTS)]
    for one in effects[:-1]:
        commits.committer.commit_when_convenient(one)
    commits.loop.run()
    assert commits.store.effects == []
    commits.committer.commit_when_convenient(effects[-1])
    commits.loop.run()
    assert commits.store.effects == [effects]


class Watching:
    """A publisher, and who goes on when something was committed: what each is told, in order."""

    def __init__(self, told: list[str]) -> None:
        self._told = told

    def accepted(self, deliveries: Any, *, at_once: bool = False) -> None:
        self._told.append(f"accepted {deliveries}{' at once' if at_once else ''}")

    def not_stored(self, deliveries: Any, refused: Refused | None) -> None:
        self._told.append(f"not stored {deliveries}")

    def watch(self, committer: Committer) -> None:
        committer.when_committed.append(lambda endpoints, news: self._told.append("listeners"))
        committer.when_not_committed.append(lambda: self._told.append("listeners"))


def test_who_waits_for_one_message_is_answered_before_all_else(commits: Commits) -> None:
    """Committed on the spot, once it is durable, and told once."""
    watching = Watching(commits.told)
    watching.watch(commits.committer)
    commits.store.now = (True, None)
    commits.committer.add(published(1, watching, 7))
    commits.loop.run()
    assert commits.told == ["accepted [7] at once", "broker", "listeners"]


def test_publishers_of_many_are_answered_with_what_else_their_connections_write(commits: Commits) -> None:
    """What the writer's thread has committed is told in its order."""
    watching = Watching(commits.told)
    watching.watch(commits.committer)
    commits.committer.add(published(1, watching, 7))
    commits.committer.add(published(2, watching, 8))
    commits.loop.run()
    assert commits.told == []
    commits.store.on_commit(commits.store.submitted, None)
    commits.loop.run()
    assert commits.told == ["broker", "accepted [7]", "broker", "accepted [8]", "listeners"]


def test_nobody_is_told_that_a_message_is_durable_which_is_not(commits: Commits) -> None:
    """A commit on the spot that failed is told as any other."""
    watching = Watching(commits.told)
    watching.watch(commits.committer)
    commits.store.now = (True, WriteFailed("the disk is full"))
    commits.committer.add(published(1, watching, 7))
    commits.loop.run()
    assert commits.told == ["not stored [7]", "listeners"]


class Mistaken(Watching):
    """A publisher, or whoever else waits, in whom there is a mistake."""

    def accepted(self, deliveries: Any, *, at_once: bool = False) -> None:
        raise ValueError("a mistake")

    def not_stored(self, deliveries: Any, refused: Refused | None) -> None:
        raise ValueError("a mistake")

    def then(self, error: WriteFailed | None) -> None:
        raise ValueError("a mistake")


@pytest.mark.parametrize("is_on_the_spot", [True, False])
@pytest.mark.parametrize("error", [None, WriteFailed("the disk is full")])
def test_who_cannot_be_told_keeps_nobody_from_being_told(
    commits: Commits, error: WriteFailed | None, is_on_the_spot: bool
) -> None:
    """What is pending is counted as before, and room is offered: a mistake in one link stops no other."""
    watching, mistaken = Watching(commits.told), Mistaken(commits.told)
    committer = commits.committer
    watching.watch(committer)
    commits.store.now = (is_on_the_spot, error)
    committer.add(published(1, mistaken, 7))
    committer.add(published(2, watching, 8))
    committer.commit([], mistaken.then)
    committer.commit([], lambda _: commits.told.append("then"))
    assert committer.pending_bytes > 0
    commits.loop.run()
    if commits.store.submitted:
        commits.store.on_commit(commits.store.submitted, error)
        commits.loop.run()
    answer = "accepted [8]" if error is None else "not stored [8]"
    assert [told.removesuffix(" at once") for told in commits.told if told != "broker"] == [
        answer,
        "then",
        "listeners",
    ]
    assert committer.pending_bytes == 0
