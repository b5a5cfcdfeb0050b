"""Delivery-ids that a peer counts apart for each link, against a naive account of them, whatever comes when."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from amqp_ext.frames.delivery_ids import ID_MODULUS, SeparateIds

HANDLES = st.integers(0, 3)
IDS = st.sampled_from([0, 1, 7, ID_MODULUS - 2, ID_MODULUS - 1])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("begin"), HANDLES, st.booleans()),
        st.tuples(st.just("begin"), HANDLES, st.booleans()),
        st.tuples(st.just("settle"), st.integers(-4, 12), st.integers(0, 12)),
        st.tuples(st.just("take back"), HANDLES, st.none()),
        st.tuples(st.just("detach"), HANDLES, st.none()),
    ),
    max_size=40,
)


def expanded(ranges: list[tuple[int, int]]) -> list[int]:
    return [
        (first + step) % ID_MODULUS
        for first, last in ranges
        for step in range((last - first) % ID_MODULUS + 1)
    ]


@given(IDS, st.lists(IDS, min_size=4, max_size=4), STEPS)
def test_each_delivery_is_settled_by_the_id_that_its_link_has_for_it(
    next_id: int, firsts: list[int], steps: list[tuple[str, int, object]]
) -> None:
    """Once, and not if its link is gone; those from before have one id; what is held is what is unsettled."""
    ids = SeparateIds(next_id)
    unsettled: dict[int, tuple[int, int]] = {}
    newest: dict[int, tuple[int, int]] = {}
    own = next_id
    for what, at, more in steps:
        if what == "begin":
            number = (newest[at][0] + 1) % ID_MODULUS if at in newest else firsts[at]
            if at in newest:
                assert ids.begin(at, (number + 1) % ID_MODULUS, is_settled=False) == number
            assert ids.begin(at, number, is_settled=bool(more)) is None
            newest[at] = number, own
            assert ids.newest(at) == newest[at]
            if not more:
                unsettled[own] = at, number
            own = (own + 1) % ID_MODULUS
        elif what == "settle":
            assert isinstance(more, int)
            first, last = (next_id + at) % ID_MODULUS, (next_id + at + more) % ID_MODULUS
            expected = []
            for step in range(at, at + more + 1):
                number = (next_id + step) % ID_MODULUS
                if step < 0:
                    expected.append(number)
                elif number in unsettled:
                    expected.append(unsettled.pop(number)[1])
            ranges = ids.settle_range(first, last)
            assert expanded(ranges) == expected
            assert all((begin - end - 1) % ID_MODULUS for (_, end), (begin, _) in pairwise(ranges))
        elif what == "take back" and at in newest:
            assert ids.settle(newest[at][1]) == unsettled.pop(newest[at][1], (0, None))[1]
        elif what == "detach":
            ids.detach(at)
            newest.pop(at, None)
            unsettled = {own: entry for own, entry in unsettled.items() if entry[0] != at}
        assert len(ids) == len(unsettled)
    for handle in range(4):
        ids.detach(handle)
    assert (len(ids), ids.settle_range(next_id, own)) == (0, [])


def test_ids_that_have_come_round_are_not_taken_for_those_from_before() -> None:
    """After more than half of all numbers."""
    ids = SeparateIds(5)
    ids._next = 2**31 + 9
    ids.begin(0, 77, is_settled=False)
    ids.begin(0, 78, is_settled=True)
    assert ids.settle_range(2**31 + 9, 2**31 + 10) == [(77, 77)]
