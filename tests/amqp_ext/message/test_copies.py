"""The fronts of copies: many at a time they are the same as one by one."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from amqp_ext.codec import Long
from amqp_ext.message.annotations import KNOWN_TOPICS, CopyFronts, annotated
from amqp_ext.message.sections import bare_offset, validate
from tests.support.messages import data, row, section, take_apart

BARE = section(0x74, {"n": 1}) + data("content")
TOPICS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=300)
IDS = st.integers(0, 2**63 - 1)
HEADERS = st.sampled_from([b"", section(0x70, [True]), section(0x70, [None, None, None, False])])
ANNOTATIONS = st.dictionaries(
    st.sampled_from(["x-opt-replay-name", "x-opt-replay-source-id", "x-opt-theirs", "x-opt-dead-reason"]),
    st.text(max_size=20) | st.integers(0, 9),
)


@given(st.lists(st.tuples(IDS, TOPICS, HEADERS, st.none() | ANNOTATIONS), max_size=8), TOPICS)
def test_each_copy_is_the_message_annotated(
    messages: list[tuple[int, str, bytes, dict[str, Any] | None]], name: str
) -> None:
    """A copy has the message's header and bare message bit for bit, its annotations, and ours in place of old ones."""
    rows = []
    for number, topic, header, theirs in messages:
        front = header if theirs is None else header + section(0x72, theirs)
        rows.append(row(number, front + BARE, topic))
    contents, bares = CopyFronts(name).copies(rows)
    assert len(contents) == len(bares) == len(rows)
    for one, content, bare, (*_, theirs) in zip(rows, contents, bares, messages, strict=True):
        validate(content)
        assert bare == bare_offset(content)
        assert content[bare:] == BARE
        ours = {
            "x-opt-replay-name": name,
            "x-opt-replay-source-topic": one[2],
            "x-opt-replay-source-id": Long(one[0]),
        }
        origin = (theirs or {}).get("x-opt-replay-source-id")
        if isinstance(origin, int) and origin > 0:
            ours["x-opt-replay-source-id"] = Long(origin)  # a copy of a copy keeps the first source
        expected, _ = annotated(one[6], ours)
        assert take_apart(content) == take_apart(expected)


def test_topics_that_are_remembered_are_bounded() -> None:
    """A bounded number of topics is remembered, and copies on forgotten topics are still the same."""
    fronts = CopyFronts("a")
    rows = [row(n, BARE, f"t/{n}") for n in range(KNOWN_TOPICS + 10)]
    assert fronts.copies(rows) == fronts.copies(rows)
    assert len(fronts._by_topic) <= KNOWN_TOPICS


@given(HEADERS, ANNOTATIONS)
def test_annotations_are_taken_off(header: bytes, theirs: dict[str, Any]) -> None:
    """Only the named annotations are removed, and with the last annotation the section."""
    assert annotated(header + BARE, {}, {"x-opt-dead-reason"}) == (header + BARE, len(header))
    content = header + section(0x72, theirs) + BARE
    left, bare = annotated(content, {}, {"x-opt-dead-reason", "x-opt-dead-time"})
    assert left[bare:] == BARE
    assert bare == bare_offset(left)
    kept = {key: value for key, value in theirs.items() if key != "x-opt-dead-reason"}
    found_header, found, _ = take_apart(left)
    assert (found_header, found or {}) == (take_apart(content)[0], kept)
