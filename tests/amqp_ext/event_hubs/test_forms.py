"""Event Hubs' positions as starts."""

from __future__ import annotations

import contextlib
import re
from urllib.parse import quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp_ext.event_hubs.forms import POSITION, from_position_selector
from amqp_ext.event_hubs.management import TokenError, path_of, read_token, sign
from amqp_ext.replay_start import (
    MAX_DATE_MS,
    MAX_OFFSET,
    ReplayStartError,
    StartKind,
)
from tests.amqp_ext.replay_start.starts import NEW_YEAR, start

# --- Event Hubs' positions as starts --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "kind", "place"),
    [
        ("amqp.annotation.x-opt-offset > '-1'", StartKind.BEGINNING, None),
        ("amqp.annotation.x-opt-offset >= '-1'", StartKind.BEGINNING, None),
        ("amqp.annotation.x-opt-offset > '@latest'", StartKind.LIVE, None),
        ("amqp.annotation.x-opt-offset > '41'", StartKind.OFFSET, 42),
        ("amqp.annotation.x-opt-offset >= '41'", StartKind.OFFSET, 41),
        ("amqp.annotation.x-opt-sequence-number > '41'", StartKind.OFFSET, 42),
        ("amqp.annotation.x-opt-sequence-number >= '41'", StartKind.OFFSET, 41),
        ("amqp.annotation.x-opt-sequence-number > '-1'", StartKind.BEGINNING, None),
        ("amqp.annotation.x-opt-sequence-number >= '0'", StartKind.BEGINNING, None),
        ("amqp.annotation.x-opt-offset > '0'", StartKind.BEGINNING, None),
        ("amqp.annotation.x-opt-offset >= '00000'", StartKind.BEGINNING, None),
        ("amqp.annotation.x-opt-enqueued-time >= '0'", StartKind.BEGINNING, None),
        ("amqp.annotation.x-opt-enqueued-time > '-62135596800000'", StartKind.BEGINNING, None),
        (f"amqp.annotation.x-opt-enqueued-time > '{NEW_YEAR}'", StartKind.DATE, NEW_YEAR + 1),
        (f"amqp.annotation.x-opt-enqueued-time >= '{NEW_YEAR}'", StartKind.DATE, NEW_YEAR),
        ("  amqp.annotation.x-opt-offset>'41' ", StartKind.OFFSET, 42),
        ('"amqp.annotation.x-opt-sequence-number" > 12345', StartKind.OFFSET, 12_346),
        (f'"amqp.annotation.x-opt-enqueued-time" >= {NEW_YEAR}', StartKind.DATE, NEW_YEAR),
    ],
)
def test_event_hubs_positions_are_read(text: str, kind: StartKind, place: int | None) -> None:
    """The strings that the Event Hubs clients send, and the form of them that Qpid JMS can send."""
    read = from_position_selector(text)
    assert read == start(kind, place)
    assert read is not None and read.form == POSITION


@pytest.mark.parametrize(
    "text",
    [
        "",
        "colour = 'red'",
        "amqp.annotation.x-opt-offset < '5'",
        "amqp.annotation.x-opt-offset = '5'",
        "amqp.annotation.x-opt-offset > '5' AND colour = 'red'",
        '"amqp.annotation.x-opt-offset > 5',
        "amqp.annotation.x-opt-partition-key > '5'",
        "xamqp.annotation.x-opt-offset > '5'",
    ],
)
def test_other_selectors_are_not_event_hubs_positions(text: str) -> None:
    """A selector of another form is left to be a selector."""
    assert from_position_selector(text) is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("amqp.annotation.x-opt-offset > ''", "The supplied offset '' is invalid: it is a number, '-1'"),
        ("amqp.annotation.x-opt-offset > 'abc'", "The supplied offset 'abc' is invalid"),
        ("amqp.annotation.x-opt-offset > '-2'", "'-2' is invalid"),
        ("amqp.annotation.x-opt-enqueued-time > '@latest'", "it is a time in ms since the epoch"),
        ("amqp.annotation.x-opt-enqueued-time > '2026-01-01'", "it is a time in ms since the epoch"),
        (f"amqp.annotation.x-opt-offset > '{MAX_OFFSET}'", "An offset is a number from 0"),
        (f"amqp.annotation.x-opt-enqueued-time > '{MAX_DATE_MS}'", "between the years"),
        ("amqp.annotation.x-opt-offset > '" + "9" * 5_000 + "'", "is invalid"),
    ],
)
def test_a_bad_event_hubs_position_is_refused(text: str, words: str) -> None:
    """The right form with no position in it is an error, not a selector that matches nothing."""
    with pytest.raises(ReplayStartError, match=re.escape(words)):
        from_position_selector(text)


# --- Shared access signatures ---------------------------------------------------------------------------------------

KEY = "0123456789abcdef"
RESOURCE = "sb://127.0.0.1:5672/flights"


def token(key: str = KEY, resource: str = RESOURCE, expires_s: int = 2_000, name: str = "ann") -> str:
    """A token as the clients make it."""
    encoded = quote_plus(resource)
    signature = quote_plus(sign(key, encoded, expires_s))
    return f"SharedAccessSignature sr={encoded}&sig={signature}&se={expires_s}&skn={name}"


def test_a_token_of_the_library_is_good() -> None:
    """One that azure-eventhub 5.15.1 made is read, and its signature is right."""
    text = (
        "SharedAccessSignature sr=sb%3A%2F%2F127.0.0.1%3A15672%2Fflights"
        "&sig=I%2Fd3EaQ7VRXPxwK2ky6Mo8hkyAt7nVHlBTb%2FQPh17EQ%3D&se=1795260000&skn=ann"
    )
    found = read_token(text)
    assert (found.key_name, found.resource, found.expires_s) == ("ann", "flights", 1_795_260_000)
    found.check(KEY, 1_795_259_999)


def test_a_token_says_who_for_what_and_how_long() -> None:
    """Key name, path and expiry are read, in whatever order they stand."""
    prefix, _, fields = token().partition(" ")
    found = read_token(f"{prefix} {'&'.join(reversed(fields.split('&')))}")
    assert (found.key_name, found.resource, found.expires_s) == ("ann", "flights", 2_000)
    found.check(KEY, 1_999.9)


@pytest.mark.parametrize(
    ("made", "now_s", "words"),
    [
        (token(key="another key, of another user"), 0, "not one of key 'ann'"),
        (token(), 2_000, "expired 0 s ago"),
        (token(), 2_060, "expired 60 s ago"),
        (token().replace("flights", "orders"), 0, "not one of key"),
        (token().replace("se=2000", "se=9000"), 0, "not one of key"),
    ],
)
def test_a_token_that_is_not_good_is_refused(made: str, now_s: float, words: str) -> None:
    """Another key, another resource or expiry than was signed, and time that has run out."""
    with pytest.raises(TokenError, match=words):
        read_token(made).check(KEY, now_s)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("eyJhbGciOi", "no shared access signature"),
        ("SharedAccessSignature ", "has no sr and no sig and no se and no skn"),
        (token().replace("&skn=ann", ""), "has no skn"),
        (token().replace("se=2000", "se=soon"), "no number of seconds"),
        (token().replace("se=2000", "se=-1"), "no number of seconds"),
    ],
)
def test_what_is_no_token_is_refused(text: str, words: str) -> None:
    """The sentence says what is missing or wrong, and quotes no signature."""
    with pytest.raises(TokenError, match=words) as refused:
        read_token(text)
    assert "sig=" not in str(refused.value).replace("sig=…", "")


@pytest.mark.parametrize(
    ("resource", "path", "is_covered"),
    [
        ("sb://h/flights", "flights", True),
        ("sb://h/flights/", "flights/ConsumerGroups/$Default/Partitions/0", True),
        ("sb://h/flights", "Flights", False),
        ("sb://h/Flights", "flights/ConsumerGroups/$Default/Partitions/0", False),
        ("amqps://h:5671/flights/Partitions/0", "flights", False),
        ("sb://h/flights", "flights-2", False),
        ("sb://h/", "anything/at/all", True),
        ("sb://h", "", True),
        ("flights", "", False),
    ],
)
def test_a_token_is_for_an_entity_and_all_below(resource: str, path: str, is_covered: bool) -> None:
    """A hub's token is for its partitions and groups, a namespace's for everything; a partition's not for its hub."""
    assert read_token(token(resource=resource)).covers(path) is is_covered


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    """Nothing that a peer puts makes reading fail otherwise."""
    for one in (text, f"SharedAccessSignature {text}", f"SharedAccessSignature sr={text}&sig=a&se=1&skn=b"):
        with contextlib.suppress(TokenError):
            read_token(one).check(KEY, 0)


def test_a_path_is_what_is_behind_the_host() -> None:
    """Scheme, host and port say nothing."""
    assert path_of("sb://h:5672/a/b/") == path_of("amqps://other/a/b") == path_of("a/b") == "a/b"
