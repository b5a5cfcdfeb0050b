"""Sessions of the console by themselves: how many there are, and when they end."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from functools import partial

import pytest
from starlette.requests import HTTPConnection

from gateway.admin.administrators import (
    COOKIE,
    IDLE_S,
    MOST_SESSIONS,
    MOST_SESSIONS_PER_USER,
    WHOLE_S,
    Sessions,
    token_of,
)
from gateway.config import Settings, User
from gateway.users import Users

OURS = f"{COOKIE}-8080"


class Clock:
    """Seconds, as the test says."""

    def __init__(self) -> None:
        self.seconds = 1_000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


def users_of(**users: User) -> Settings:
    """Settings with these users."""
    return Settings(users=users)


@pytest.fixture
def users() -> Users:
    """A directory of two, and of many."""
    return Users(
        users_of(ann=User(), ben=User(), **{f"u{number}": User() for number in range(MOST_SESSIONS)})
    )


@pytest.fixture
def sessions(users: Users, clock: Clock) -> Sessions:
    return Sessions(users, clock, lambda: True)


def test_a_session_is_found_by_what_its_cookie_holds_and_by_nothing_else(sessions: Sessions) -> None:
    """Two of one user are two; neither secret is the other, or short."""
    first, session = sessions.begin("ann")
    second, other = sessions.begin("ann")
    assert sessions.find(first) is session
    assert sessions.find(second) is other
    assert len({first, second, session.csrf_token, other.csrf_token}) == 4
    assert min(map(len, (first, session.csrf_token))) == 43  # 256 bits in base 64
    for wrong in (None, "", first[:-1], first + "x", session.csrf_token, "\udc80"):
        assert sessions.find(wrong) is None


def test_what_the_cookie_holds_is_not_kept(sessions: Sessions) -> None:
    """Who reads the memory of sessions can use none of them."""
    token, _ = sessions.begin("ann")
    assert token not in repr(vars(sessions))


def test_a_session_that_is_not_used_ends(sessions: Sessions, clock: Clock) -> None:
    """Each request puts that off."""
    token, _ = sessions.begin("ann")
    for _ in range(3):
        clock.seconds += IDLE_S - 1
        assert sessions.find(token) is not None
    clock.seconds += IDLE_S
    assert sessions.find(token) is None


def test_a_session_ends_however_much_it_is_used(sessions: Sessions, clock: Clock) -> None:
    """After a working day."""
    token, session = sessions.begin("ann")
    while clock.seconds < session.begun + WHOLE_S - 60:
        clock.seconds += 60
        assert sessions.find(token) is not None
    clock.seconds = session.begun + WHOLE_S
    assert sessions.find(token) is None
    clock.seconds -= 60
    assert sessions.find(token) is None, "what has ended stays so"


def test_a_session_ends_when_other_things_are_said_of_its_user(sessions: Sessions, users: Users) -> None:
    """Another rule, and no user any more; a reload that says the same of him ends none."""
    ann, _ = sessions.begin("ann")
    ben, _ = sessions.begin("ben")
    users.reload(users_of(ann=User(), ben=User(consume=("queue://q",))))
    assert sessions.find(ann) is not None
    assert sessions.find(ben) is None
    users.reload(users_of(ben=User(consume=("queue://q",))))
    assert sessions.find(ann) is None
    users.reload(users_of(ann=User(), ben=User(consume=("queue://q",))))
    assert sessions.find(ann) is None, "a user of the same name is another"


def test_none_is_found_where_none_is_wanted(users: Users, clock: Clock) -> None:
    """The console can be turned off while the gateway runs; turned on again, it knows nobody of before."""
    wanted = [True]
    sessions = Sessions(users, clock, lambda: wanted[0])
    token, _ = sessions.begin("ann")
    wanted[0] = False
    assert sessions.find(token) is None
    wanted[0] = True
    assert sessions.find(token) is None


def test_a_user_ends_his_own_sessions_by_having_too_many(sessions: Sessions) -> None:
    """The one that was used the longest ago goes, and nobody else's."""
    theirs, _ = sessions.begin("ben")
    own = [sessions.begin("ann")[0] for _ in range(MOST_SESSIONS_PER_USER)]
    assert sessions.find(own[0]) is not None  # and is now the one that was used last
    newest, _ = sessions.begin("ann")
    assert sessions.find(own[1]) is None
    assert all(sessions.find(token) for token in (theirs, own[0], *own[2:], newest))
    assert len(sessions) == MOST_SESSIONS_PER_USER + 1


def test_there_are_no_more_than_so_many(sessions: Sessions) -> None:
    """However many users sign in; the ones that are not used go first."""
    first, _ = sessions.begin("u0")
    second, _ = sessions.begin("u1")
    for number in range(2, MOST_SESSIONS):
        sessions.begin(f"u{number}")
    assert len(sessions) == MOST_SESSIONS
    assert sessions.find(first) is not None
    sessions.begin("ann")
    assert len(sessions) == MOST_SESSIONS
    assert sessions.find(second) is None
    assert sessions.find(first) is not None


def test_those_that_have_ended_hold_no_place(sessions: Sessions, clock: Clock) -> None:
    """They are forgotten when another begins."""
    for number in range(10):
        sessions.begin(f"u{number}")
    clock.seconds += IDLE_S
    sessions.begin("ann")
    assert len(sessions) == 1


def test_what_goes_on_ends_with_its_session(sessions: Sessions, users: Users, clock: Clock) -> None:
    """At sign-out, by another reading of the users, by idling, by its time; what is over is not ended again."""

    async def run() -> None:
        ended: list[str] = []
        with ExitStack() as stack:
            tokens = {}
            for name in ("out", "changed", "idle"):
                tokens[name], session = sessions.begin("ben" if name == "changed" else "ann")
                stack.enter_context(sessions.going_on(session, partial(ended.append, name)))
            _, session = sessions.begin("ann")
            with sessions.going_on(session, partial(ended.append, "over")):
                pass
            sessions.end(tokens["out"])
            assert ended == ["out"]
            users.reload(users_of(ann=User(), ben=User(consume=("queue://q",))))
            assert sessions.find(tokens["changed"]) is None
            assert ended == ["out", "changed"]
            clock.seconds += IDLE_S
            _, session = sessions.begin("ann")
            assert ended == ["out", "changed", "idle"]
            clock.seconds += WHOLE_S
            whole = asyncio.Event()
            stack.enter_context(sessions.going_on(session, whole.set))
            await asyncio.wait_for(whole.wait(), 20)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("fields", "token"),
    [
        ([], None),
        (["a=b"], None),
        ([f"{OURS}=x"], "x"),
        ([f"a=b; {OURS}=x=y; c"], "x=y"),
        (["a=b", f"{OURS}=x"], "x"),
        ([f"{OURS}=x; {OURS}=y"], None),
        ([f"{OURS}=x", f"{OURS}=x"], None),
        ([f"x{OURS}=x; {OURS}x=y"], None),
        ([f"{COOKIE}-8081=x; {OURS}=y; {COOKIE}=z"], "y"),
    ],
)
def test_a_cookie_that_is_there_twice_is_nobody_s(fields: list[str], token: str | None) -> None:
    """One of them may have been set by another page; the one of another port is another gateway's."""
    headers = [(b"host", b"a"), *((b"cookie", field.encode()) for field in fields)]
    request = HTTPConnection({"type": "http", "server": ("127.0.0.1", 8080), "headers": headers})
    assert token_of(request) == token
