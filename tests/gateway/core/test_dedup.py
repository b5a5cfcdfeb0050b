"""Deduplication of publishers: windows against a naive model, and ids of every type and encoding."""

from __future__ import annotations

import sys
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from amqp_ext.codec import Symbol, ULong
from amqp_ext.message.fields import publisher_ids, split_ids
from amqp_ext.message.sections import bare_offset
from gateway.core._id_set import IdSet
from gateway.core.dedup import Deduplication, DedupWindow
from gateway.core.effects import Publication, StoredIds
from gateway.core.endpoint.settings import MOST_IDS, EndpointKind, EndpointSettings
from gateway.core.errors import Refused
from tests.support.core import new_broker
from tests.support.messages import MESSAGE_ANNOTATIONS, PROPERTIES, data, section

_steps = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.lists(st.sampled_from([*"abcdefgh", ""]), min_size=1, max_size=5)),
        st.tuples(st.sampled_from(["commit", "fail", "restart"]), st.none()),
        st.tuples(st.just("time"), st.integers(-20, 20)),
        st.tuples(st.just("erase"), st.sets(st.sampled_from([*"abcdefgh"]), min_size=1, max_size=3)),
    ),
    max_size=40,
)


_AGAIN = [("publish", ["a", "b"]), ("commit", None), ("publish", ["a"]), ("commit", None), ("restart", None)]


@example(_AGAIN, 1, 0, set)
@given(_steps, st.integers(1, 6), st.sampled_from([0, 10]), st.sampled_from([IdSet, set]))
def test_a_window_is_a_list_of_the_last_ids(
    steps: list[tuple[str, Any]], size: int, age_ms: int, ids_of: type[set[bytes]]
) -> None:
    """
    Against a list of (id, time, first message of its publication, message) that is cut when a publication is durable:
    for any publications, commits, failures, erasures and restarts, with any clock, and with the set of ids in C or in
    Python.
    """
    settings = EndpointSettings(dedup_window=size, dedup_window_ms=age_ms)
    broker = new_broker()
    number = broker.create("q", EndpointKind.QUEUE, settings)[0].number
    publications, now_ms, last_ms = broker.publications, 1_000, 0
    broker.dedup.windows[number].ids = ids_of()
    kept: list[tuple[bytes, int, int, int]] = []
    on_way: list[Publication] = []
    stored: dict[int, StoredIds] = {}
    for step, given_here in steps:
        if step == "publish":
            last_ms = max(last_ms, now_ms)
            ids = [text.encode() for text in given_here]
            durable = broker.log.next_id
            if age_ms:
                kept = [one for one in kept if one[2] >= durable or one[1] > last_ms - age_ms]
            known, new = {one for one, *_ in kept}, []
            for one in ids:
                if not one or one not in known:
                    new.append(one)
                    known.add(one)
            sifted = publications.sift("#queue/q", ids, last_ms)
            assert new == (ids if sifted is None else [ids[place] for place in sifted.new])
            if sifted is not None:
                assert sorted(
                    [*sifted.new, *sifted.stored, *[p for p, _ in sifted.on_way], *sifted.again]
                ) == [*range(len(ids))]
                at = {one: first for one, _, first, _ in kept}
                assert all(at[ids[place]] < durable for place in sifted.stored)
                assert all(p.rows[0][0] == at[ids[place]] >= durable for place, p in sifted.on_way)
            if new:
                publication, _, _ = publications.publish(
                    now_ms, "#queue/q", [b"x"] * len(new), [0] * len(new), None, ids=new
                )
                assert publication is not None
                on_way.append(publication)
                first = publication.rows[0][0]
                kept += [(one, last_ms, first, first + k) for k, one in enumerate(new) if one]
        elif step in ("commit", "fail") and on_way:
            publication = on_way.pop(0)
            first = publication.rows[0][0]
            if step == "fail":
                publications.failed(publication)
                kept = [one for one in kept if one[2] != first]
                continue
            publications.committed(publication)
            if publication.dedup is not None:
                stored[first] = StoredIds((first, publication.rows[0][1]), publication.dedup.ids)
                gone = publication.dedup.endpoints[number]
                stored = {i: found for i, found in stored.items() if i > gone}
            excess = max(sum(one[2] <= first for one in kept) - size, 0)
            kept = kept[excess:]
        elif step == "erase":
            durable = broker.log.next_id
            gone = [one for one in kept if one[0].decode() in given_here and one[2] < durable]
            effects = broker.dedup.forget({message: one for one, _, _, message in gone})
            kept = [one for one in kept if one not in gone]
            broker.dedup.forgotten(effects)
            for first, ids in [found for effect in effects for found in (effect.kept or {}).items()]:
                stored[first] = stored[first]._replace(ids=ids)
        elif step == "restart" and not on_way:
            window = broker.dedup.windows[number] = DedupWindow(size, age_ms, ids=ids_of())
            window.restore([stored[first] for first in sorted(stored) if stored[first].ids])
        elif step == "time":
            now_ms += given_here
        assert len(broker.dedup.windows[number]) >= len(kept)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["update", "difference_update"]), st.lists(st.integers(0, 400), max_size=90)
        )
    )
)
def test_the_set_in_c_is_a_set(steps: list[tuple[str, list[int]]]) -> None:
    """For any updates and removals; its storage grows and shrinks."""
    found, model = IdSet(), set[bytes]()
    for step, numbers in steps:
        # Equal ids are different objects each time.
        ids = [b"%d" % number for number in numbers]
        assert found.isdisjoint(ids) == model.isdisjoint(ids)
        getattr(found, step)(ids)
        getattr(model, step)(ids)
        assert len(found) == len(model)
        assert all((b"%d" % number in found) == (b"%d" % number in model) for number in range(401))


def test_the_set_in_c_keeps_its_ids_and_lets_them_go() -> None:
    """It owns one reference to each id, and releases it on removal and on deletion. Anything but bytes is refused."""
    ids = [b"id %d" % number for number in range(10_000)]
    before = [sys.getrefcount(one) for one in ids]
    found = IdSet()
    found.update(ids)
    found.update(ids)
    assert len(found) == len(ids)
    found.difference_update(ids[:9_990] * 2)
    for wrong in (tuple(ids), None, [b"x", "y"]):
        with pytest.raises(TypeError, match=r"list|an id is bytes"):
            found.update(wrong)  # type: ignore[arg-type] # that is the test
    assert "id 9999" not in found
    assert b"id 9999" in found
    found.difference_update([b"x"])
    assert len(found) == 10
    del found
    assert [sys.getrefcount(one) for one in ids] == before


class Scanned(list[bytes]):
    """A list in which nothing may be looked for, one place after the other."""

    def __contains__(self, one: object) -> bool:
        raise AssertionError("each of thousands of ids would be compared with all others")


def test_forgetting_one_id_of_many_takes_linear_time() -> None:
    """Of the ids of a publication, those that stay are looked up, not searched for."""
    window, ids = DedupWindow(100, 0), Scanned(b"%d" % number for number in range(10))
    window.publish(1, 0, ids)
    window.committed(10)
    window.forget({1: Scanned(ids[1:])})
    assert len(window) == 9


def test_what_is_durable_in_one_window_is_accepted_at_once() -> None:
    """Even if the id is being committed to another window, where it came a second time."""
    broker = new_broker()
    for name, size in (("short", 1), ("long", 5)):
        broker.create(name, EndpointKind.QUEUE, EndpointSettings(dedup_window=size), [f"{name}/>", "both"])

    def publish(topic: str, *ids: bytes) -> Publication:
        found, _, _ = broker.publications.publish(
            1, topic, [b"x"] * len(ids), [0] * len(ids), None, ids=list(ids)
        )
        assert found is not None
        return found

    broker.publications.committed(publish("both", b"a"))
    broker.publications.committed(publish("short/x", b"b"))
    again = publish("short/x", b"a")
    sifted = broker.publications.sift("both", [b"a"], 1)
    assert sifted is not None
    assert (sifted.stored, sifted.on_way) == ([0], [])
    other = broker.publications.sift("short/y", [b"a", b"c"], 1)
    assert other is not None
    assert (other.on_way, other.new) == ([(0, again)], [1])
    also = publish("long/x", b"c")
    assert broker.publications.sift("both", [b"c"], 1).on_way == [(0, also)]  # type: ignore[union-attr]
    broker.publications.committed(again)
    broker.publications.failed(also)
    assert broker.publications.sift("both", [b"c"], 1) is None


def test_duplicates_are_counted_without_routing_anew() -> None:
    """Who sends the same messages again and again does not have their endpoints found again each time."""
    broker = new_broker()
    broker.create("q", EndpointKind.QUEUE, EndpointSettings(dedup_window=5), ("a",))
    assert broker.publications.has_window("a")
    routing = broker.router.cached["a"]
    broker.publications.count_duplicates("a", 3)
    assert [window.duplicates for window in broker.dedup.windows.values()] == [3]
    assert broker.router.cached["a"] is routing


def test_all_windows_have_a_bound_together() -> None:
    """A window of a billion ids is refused, and so are windows that are too large in total."""
    dedup = Deduplication()
    dedup.configure(1, MOST_IDS - 5, 0)
    dedup.check(2, 5, 1)
    dedup.check(1, MOST_IDS, 0)
    for count in (6, 1_000_000_000):
        with pytest.raises(Refused, match="4000000 together"):
            dedup.check(2, count, 0)


_UUID = UUID(int=7)


def _message(one: Any, annotation: Any = None) -> bytes:
    front = (
        b"" if annotation is None else section(MESSAGE_ANNOTATIONS, {Symbol("x-opt-dedup-id"): annotation})
    )
    return front + section(PROPERTIES, [one]) + data("x")


def _ids(*messages: bytes) -> list[bytes]:
    return publisher_ids([*messages], [bare_offset(message) for message in messages])


def test_ids_are_to_be_forgotten_where_a_window_ends() -> None:
    """Only an endpoint that loses its window has ids to forget, once."""
    dedup = Deduplication()
    assert [dedup.configure(1, messages, 0) for messages in (0, 5, 3, 0, 0)] == [
        False,
        False,
        False,
        True,
        False,
    ]


def test_ids_of_each_type_are_others() -> None:
    """A number, a uuid, a binary and a string that look alike are four ids; so are long, hashed ones."""
    long = "a" * 65_536
    values = [ULong(7), _UUID, _UUID.bytes, "7", b"7", "", b"", ULong(0), long, long + "b", long.encode()]
    found = _ids(*map(_message, values))
    assert len(set(found)) == len(values)
    assert b"" not in found
    assert max(map(len, found)) <= 34
    assert split_ids(b"".join(found)) == found


@pytest.mark.parametrize(
    ("one", "other", "are_same"),
    [
        (_message("a"), _message("b", "a"), True),
        (_message("a", "b"), _message("a", "c"), False),
        (_message(None, ULong(7)), _message(ULong(7)), True),
        (
            _message("a"),
            b"\x00\x80\x00\x00\x00\x00\x00\x00\x00\x73\xd0\x00\x00\x00\x0a\x00\x00\x00\x01\xb1\x00\x00\x00\x01a"
            + data("x"),
            True,
        ),
        (_message(None), data("x"), True),
        (_message("a"), _message("a", 1.5), False),
    ],
)
def test_an_id_is_its_value(one: bytes, other: bytes, are_same: bool) -> None:
    """The encoding does not matter; the annotation has precedence over the message-id; a wrong type is no id."""
    first, second = _ids(one, other)
    assert (first == second) is are_same


@given(
    st.sampled_from(["a", "b" * 32, "c" * 40, b"d", ULong(300), _UUID, None]),
    st.lists(
        st.tuples(
            st.sampled_from([None, "x", "a"]), st.integers(0, 60), st.binary(max_size=1), st.booleans()
        ),
        min_size=3,
    ),
)
def test_ids_of_messages_that_come_together_are_those_of_each(
    one: Any, others: list[tuple[Any, ...]]
) -> None:
    """Messages decoded together have the ids of each decoded alone, however similar, or where they end."""
    usual = _message(one)
    messages, bares = [usual], [bare_offset(usual)]
    for annotation, at, changed, is_whole in others:
        message = _message(one, annotation)
        messages.append(message[:at] + changed + message[at + 1 :] if is_whole else message[:at] + changed)
        bares.append(bare_offset(message))
    each = [publisher_ids([message], [bare])[0] for message, bare in zip(messages, bares, strict=True)]
    assert publisher_ids(messages, bares) == each


@given(st.binary(max_size=40), st.integers(0, 40))
def test_any_bytes_have_an_id_or_none(content: bytes, bare: int) -> None:
    """No bytes that a publisher sends raise an exception."""
    (found,) = publisher_ids([b"\x00\x53\x73" + content], [0])
    assert split_ids(found) == ([found] if found else [])
    publisher_ids([content], [min(bare, len(content))])
