"""Starts and their parts, for the tests of every form of a start."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from amqp_ext.codec import Byte, Int, Long, Short, Timestamp, UByte, UInt, ULong, UShort
from amqp_ext.replay_id import ReplayId
from amqp_ext.replay_start import (
    ReplayStart,
    StartKind,
)

RMID = "rmid1:00000-00000000007-00000000-0000002a"
ID = ReplayId(7, 42)
NEW_YEAR = 1_767_225_600_000  # 2026-01-01T00:00:00Z
HOUR = 3_600_000
DAY = 24 * HOUR
INTEGERS = [int, Byte, Short, Int, Long, UByte, UShort, UInt, ULong]


def start(kind: StartKind, value: int | ReplayId | str | None = None, **more: Any) -> ReplayStart:
    return ReplayStart(kind, value, **more)


WIRE_VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**64 - 1),
        st.integers(-(2**63), 2**63 - 1).map(Timestamp),
        st.floats(),
        st.text(max_size=12),
        st.text(alphabet="rmid1:#0123456789-TZsmhD.", max_size=24),
        st.binary(max_size=4),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.one_of(
                st.sampled_from(["from", "date", "offset", "after", "until", "speed"]), st.text(max_size=3)
            ),
            inner,
            max_size=3,
        ),
    ),
    max_leaves=6,
)
"""Any AMQP value, often one that resembles a start."""
