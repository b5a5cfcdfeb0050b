"""The directory of users: how each is authenticated, what each may do, and that a reload replaces all of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from amqp_ext import sasl
from amqp_ext.addresses.address import AddressKind
from amqp_ext.sasl import ITERATIONS, hash_password
from gateway.config import Settings, User, token_hash
from gateway.core.errors import ErrorCode, Refused
from gateway.core.permissions import Action
from gateway.users import REMEMBERED, THREADS, WAITING_PER_ADDRESS, PasswordChecks, TooManyChecks, Users

# --- The directory of users -----------------------------------------------------------------------------------------

SALT = b"0123456789abcdef"
HASH = hash_password("secret", salt=SALT, iterations=4_096)
OTHER = hash_password("other", salt=SALT, iterations=8_192)


def users_of(**users: User) -> Users:
    """A directory of these users."""
    return Users(Settings(users=users))


def has_password(users: Users, name: str, password: str) -> bool:
    """Whether this is the user's password, checked as administration does."""
    return asyncio.run(users.has_password(name, password))


def test_without_users_everyone_may_do_everything_but_is_nobody() -> None:
    """An open gateway lets everyone in, but no password, token or certificate names a user."""
    users = users_of()
    assert not users.are_configured
    assert users.may_enter("anyone", "default")
    assert users.permissions("anyone").decide(Action.ADMINISTER, AddressKind.LOG, ">").is_allowed
    assert users.name_of_certificate("anyone") is None
    assert users.name_of_token("") is None
    assert not has_password(users, "", "")


def test_a_user_is_known_by_each_of_what_is_configured(tmp_path: Path) -> None:
    """Password, token, key and certificate each lead to the user who has them, from the settings or from a file."""
    for name, text in (("hash", HASH), ("token", token_hash("t0")), ("key", "k" * 16)):
        (tmp_path / name).write_text(f"{text}\n")
    users = users_of(
        ann=User(password=HASH, token=token_hash("t1"), certificate_names=("ann.example",)),
        bob=User(
            password_file=tmp_path / "hash", token_file=tmp_path / "token", sas_key_file=tmp_path / "key"
        ),
    )
    for name in ("ann", "bob"):
        assert str(users.passwords[name]) == HASH
        assert has_password(users, name, "secret")
        assert not has_password(users, name, "wrong")
    assert [users.name_of_token(token) for token in ("t0", "t1", "t2")] == ["bob", "ann", None]
    assert [users.sas_keys.get(name) for name in ("ann", "bob", "cid")] == [None, "k" * 16, None]
    certificates = ("ann.example", "bob.example", "", None)
    assert [users.name_of_certificate(name) for name in certificates] == ["ann", None, None, None]


def test_nobody_costs_as_many_rounds_as_somebody(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    For an unknown user a decoy is hashed, with the highest number of iterations of any password, or the default one:
    the time of a check does not reveal who is a user.
    """
    assert users_of(ann=User(password=HASH), bob=User(password=OTHER)).decoy_iterations == 8_192
    assert users_of(ann=User(certificate_names=("ann",))).decoy_iterations == ITERATIONS
    rounds: list[int] = []
    pbkdf2 = sasl.hashlib.pbkdf2_hmac

    def counted(name: str, password: bytes, salt: bytes, iterations: int, *more: Any) -> bytes:
        rounds.append(iterations)
        return pbkdf2(name, password, salt, iterations, *more)

    monkeypatch.setattr(sasl.hashlib, "pbkdf2_hmac", counted)
    for name in ("ann", "nobody"):
        assert not has_password(users_of(ann=User(password=HASH)), name, "wrong")
    assert rounds == [4_096, 4_096]


def test_who_is_configured_enters_the_vpns_named_and_no_others() -> None:
    """The refusal is the error that a client gets."""
    users = users_of(ann=User(password=HASH, vpns=("default", "eu")))
    users.check_entry("ann", "eu")
    for name, vpn in (("ann", "us"), ("nobody", "default")):
        assert not users.may_enter(name, vpn)
        with pytest.raises(Refused, match=f"user '{name}' may not use the Message VPN '{vpn}'") as refused:
            users.check_entry(name, vpn)
        assert refused.value.code is ErrorCode.UNAUTHORIZED


def test_a_reload_replaces_everybody() -> None:
    """Passwords that were right before are not remembered; the key of the decoys stays."""
    users = users_of(ann=User(password=HASH, token=token_hash("t1")), bob=User(password=HASH))
    key = users.decoy_key
    assert has_password(users, "ann", "secret")
    users.reload(Settings(users={"ann": User(password=OTHER)}))
    assert not has_password(users, "ann", "secret")
    assert has_password(users, "ann", "other")
    assert users.name_of_token("t1") is None
    assert not users.may_enter("bob", "default")
    assert users.decoy_key == key


def test_a_file_that_cannot_be_read_changes_nothing(tmp_path: Path) -> None:
    """All users stay as they were."""
    users = users_of(ann=User(password=HASH))
    with pytest.raises(ValueError, match="cannot be read"):
        users.reload(Settings(users={"bob": User(password_file=tmp_path / "none")}))
    assert has_password(users, "ann", "secret")
    assert not users.may_enter("bob", "default")


def test_passwords_that_were_right_are_remembered_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """A right password is hashed once; the number of remembered ones is limited."""
    users = users_of(ann=User(password=HASH))
    for number in range(REMEMBERED):
        users.verified.add("bob", str(number))
    assert has_password(users, "ann", "secret")
    assert len(users.verified) == 1
    monkeypatch.setattr("gateway.users.StoredPassword.verify", lambda *_: pytest.fail("hashed again"))
    assert has_password(users, "ann", "secret")


# --- Checks of passwords in threads ---------------------------------------------------------------------------------

SECONDS = 30


def run(test: Callable[[PasswordChecks], Awaitable[None]]) -> None:
    async def whole() -> None:
        checks = PasswordChecks()
        try:
            await asyncio.wait_for(test(checks), SECONDS)
        finally:
            checks.close()

    asyncio.run(whole())


def test_what_the_check_says_comes_back() -> None:
    """True, False, or the exception that the check raised."""

    async def test(checks: PasswordChecks) -> None:
        assert await checks.check("a", lambda: True) is True
        assert await checks.check("a", lambda: False) is False
        with pytest.raises(ZeroDivisionError):
            await checks.check("a", lambda: bool(1 // 0))
        assert await checks.check("a", lambda: True) is True

    run(test)


def test_an_address_has_one_check_at_a_time_and_others_go_on() -> None:
    """While the first check of an address runs, its others wait, and another address's check is done."""

    async def test(checks: PasswordChecks) -> None:
        go, begun = threading.Event(), []

        def slow() -> bool:
            begun.append(1)
            return go.wait(SECONDS)

        flood = [asyncio.ensure_future(checks.check("flood", slow)) for _ in range(10)]
        await asyncio.sleep(0)
        assert await checks.check("other", lambda: True)
        assert len(begun) == 1
        go.set()
        assert await asyncio.gather(*flood) == [True] * 10

    run(test)


def test_addresses_take_turns() -> None:
    """Of two addresses with waiting checks, each has every second one."""

    async def test(checks: PasswordChecks) -> None:
        go, order = threading.Event(), []

        def held() -> bool:
            return go.wait(SECONDS)

        def noted(name: str) -> Callable[[], bool]:
            return lambda: order.append(name) is None

        # Other addresses occupy all threads but one.
        taken = [asyncio.ensure_future(checks.check(f"taken {n}", held)) for n in range(THREADS - 1)]
        first = asyncio.ensure_future(checks.check("a", held))
        await asyncio.sleep(0)
        rest = [asyncio.ensure_future(checks.check(name, noted(name))) for name in "aaab"]
        await asyncio.sleep(0)
        go.set()
        await asyncio.gather(first, *taken, *rest)
        assert "b" in order[:2]

    run(test)


def test_more_than_may_wait_are_refused() -> None:
    """Beyond the limit of its address a check is refused immediately; a cancelled check is not run."""

    async def test(checks: PasswordChecks) -> None:
        go = threading.Event()
        begun: list[int] = []
        first = asyncio.ensure_future(checks.check("a", lambda: go.wait(SECONDS)))
        await asyncio.sleep(0)
        waiting = [
            asyncio.ensure_future(checks.check("a", lambda: begun.append(1) is None))
            for _ in range(WAITING_PER_ADDRESS)
        ]
        await asyncio.sleep(0)
        with pytest.raises(TooManyChecks):
            await checks.check("a", lambda: True)
        for each in waiting[1:]:
            each.cancel()
        go.set()
        assert await first
        assert await waiting[0]
        assert await checks.check("a", lambda: True)
        assert begun == [1]

    run(test)
