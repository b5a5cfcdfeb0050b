"""The options of an address that ask for a replay."""

from __future__ import annotations

import pytest

from amqp_ext.replay_start import (
    OPTION,
    Missing,
    ReplayStart,
    ReplayStartError,
    StartKind,
    Until,
    UntilKind,
    from_options,
)
from tests.amqp_ext.replay_start.starts import NEW_YEAR, start


def test_options_of_an_address_make_a_start() -> None:
    """All six options are read, numbers from their texts, and others are left alone."""
    read = from_options(
        {
            "replay-start": "10m",
            "until": "2026-01-01T00:00:00Z",
            "missing": "clamp",
            "generation": "18446744073709551615",
            "speed": "2.5",
            "rate": "100",
            "exclusive": "wait",
        }
    )
    assert read == ReplayStart(
        StartKind.AGO,
        600_000,
        until=Until(UntilKind.DATE, NEW_YEAR),
        missing=Missing.CLAMP,
        generation=2**64 - 1,
        speed=2.5,
        rate=100.0,
    )
    assert read is not None and read.form == OPTION


def test_options_without_a_replay_make_none() -> None:
    """An address that asks for no replay has no start."""
    assert from_options({}) is None
    assert from_options({"exclusive": "wait", "create": "never"}) is None


def test_until_alone_reads_from_the_beginning() -> None:
    """A range given by its end alone begins at the beginning; other modifiers alone are refused."""
    assert from_options({"until": "#9"}) == start(StartKind.BEGINNING, until=Until(UntilKind.OFFSET, 9))
    with pytest.raises(ReplayStartError, match="does not say where to start, it has only speed"):
        from_options({"speed": "2"})


@pytest.mark.parametrize(
    "options",
    [
        {"replay-start": "nonsense"},
        {"replay-start": ""},
        {"replay-start": "live", "until": "9"},
        {"replay-start": "live", "missing": "no"},
        {"replay-start": "live", "generation": "-1"},
        {"replay-start": "live", "generation": "x"},
        {"replay-start": "live", "generation": "99999999999999999999"},
        {"replay-start": "live", "speed": "fast"},
        {"replay-start": "live", "speed": "0"},
        {"replay-start": "live", "speed": "inf"},
        {"replay-start": "live", "rate": "-1"},
        {"replay-start": "live", "rate": "1e3"},
    ],
)
def test_bad_options_are_refused(options: dict[str, str]) -> None:
    """No option of a replay is dropped for being wrong."""
    with pytest.raises(ReplayStartError):
        from_options(options)
