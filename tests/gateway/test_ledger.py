"""Memory that peers make the gateway hold: sums that equal their parts after any change, and waiting for room."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gateway.ledger import DELIVERY_BYTES, KINDS, Account, Kind, Ledger
from tests.support.chance import times

PROCESS, USER, CONNECTION = 10_000, 4_000, 3_000


class LedgerMachine(RuleBasedStateMachine):
    """Accounts of two users, next to a list of what each holds."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger(PROCESS, USER)
        self.accounts: list[tuple[Account, list[int]]] = []
        self.users: dict[Account, str] = {}
        self.closed: list[tuple[Account, str]] = []
        self.resumed: list[Account] = []

    def _some(self, number: int) -> tuple[Account, list[int]] | None:
        return self.accounts[number % len(self.accounts)] if self.accounts else None

    @rule()
    def connect(self) -> None:
        account = self.ledger.open(CONNECTION, lambda bound: None)
        self.accounts.append((account, [0] * len(Kind)))

    @rule(number=st.integers(0, 9), user=st.sampled_from("ab"))
    def sign_in(self, number: int, user: str) -> None:
        if (found := self._some(number)) is not None:
            found[0].sign_in(user)
            self.users[found[0]] = user

    @rule(number=st.integers(0, 9), kind=st.sampled_from(Kind), size=st.integers(0, 3_000))
    def hold(self, number: int, kind: Kind, size: int) -> None:
        if (found := self._some(number)) is not None:
            found[0].holds(kind, size)
            found[1][kind] = size

    @rule(number=st.integers(0, 9))
    def disconnect(self, number: int) -> None:
        if (found := self._some(number)) is not None:
            self.accounts.remove(found)
            self.users.pop(found[0], None)
            found[0].close()
            found[0].hold(Kind.LINKS, 77)  # reported after the close

    @rule(number=st.integers(0, 9))
    def wait(self, number: int) -> None:
        found = self._some(number)
        if found is None:
            return
        account = found[0]
        of_user = sum(
            sum(held) for each, held in self.accounts if self.users.get(each) == self.users.get(account)
        )
        of_all = sum(sum(held) for _, held in self.accounts)
        is_full = (account in self.users and of_user >= USER) or of_all >= PROCESS
        assert account.wait_for_room(lambda: self.resumed.append(account)) is is_full

    @invariant()
    def sums_are_those_of_the_parts(self) -> None:
        for account, held in self.accounts:
            assert account.held == held
            assert account.held_bytes == sum(held)
            assert account.is_over is (sum(held) > CONNECTION)
        for kind, name in enumerate(KINDS):
            assert self.ledger.held[name] == sum(held[kind] for _, held in self.accounts)
        for user in "ab":
            expected = sum(sum(held) for account, held in self.accounts if self.users.get(account) == user)
            found = self.ledger._users.get(user)
            assert expected == (0 if found is None else found.held_bytes)
        assert self.ledger.is_full is (sum(sum(held) for _, held in self.accounts) >= PROCESS)


LedgerMachine.TestCase.settings = settings(max_examples=times(100, 10_000), stateful_step_count=30)
TestLedger = LedgerMachine.TestCase


def test_who_waits_goes_on_when_there_is_room() -> None:
    """A connection that waits for room of its user is resumed once, when another one of that user releases enough."""
    ledger = Ledger(PROCESS, USER)
    told: list[str] = []
    first, second = (ledger.open(CONNECTION, told.append) for _ in range(2))
    for account in (first, second):
        account.sign_in("ann")
    first.hold(Kind.UNFINISHED, USER)
    assert second.wait_for_room(lambda: told.append("room"))
    first.hold(Kind.UNFINISHED, -1)
    assert told == ["room"]
    first.hold(Kind.UNFINISHED, -1)
    assert told == ["room"]
    assert not second.wait_for_room(lambda: None)


def test_the_largest_is_closed_only_where_waiting_did_not_help() -> None:
    """Of two checks in a row that find a publisher waiting, the second closes the connection that holds most."""
    ledger = Ledger(1_000, 10_000)
    closed: list[tuple[str, str]] = []
    large = ledger.open(CONNECTION, lambda bound: closed.append(("large", bound)))
    small = ledger.open(CONNECTION, lambda bound: closed.append(("small", bound)))
    large.hold(Kind.UNFINISHED, 900)
    small.hold(Kind.UNFINISHED, 200)
    ledger.relieve()
    ledger.relieve()
    assert closed == []  # nobody waits
    assert small.wait_for_room(lambda: None)
    ledger.relieve()
    assert closed == []
    ledger.relieve()
    assert closed == [("large", "memory_mb")]
    assert ledger.closed_connections == 1
    large.close()
    ledger.relieve()
    ledger.relieve()
    assert closed == [("large", "memory_mb")]


def test_deliveries_have_half_of_a_connections_bound() -> None:
    """Only unsettled deliveries reduce the room for deliveries, not what else is held; it is never below zero."""
    account = Ledger(PROCESS, USER).open(8 * DELIVERY_BYTES, lambda _: None)
    account.hold(Kind.UNFINISHED, 7 * DELIVERY_BYTES)
    assert account.room_for_deliveries == 4
    account.hold(Kind.UNSETTLED, 3 * DELIVERY_BYTES)
    assert account.room_for_deliveries == 1
    account.hold(Kind.UNSETTLED, 3 * DELIVERY_BYTES)
    assert account.room_for_deliveries == 0
