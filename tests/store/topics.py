"""Topics and topic patterns made by chance, each with what SQL's own patterns could take for something of theirs."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from amqp_ext.topics import TopicPattern, TopicSyntaxError

_pieces = st.text(alphabet='ab*>?[]!#-^ä%_\\"{},', max_size=3)
_topics = st.lists(_pieces, min_size=1, max_size=4).map("/".join).filter(bool)
_levels = st.one_of(_pieces.filter(bool), st.sampled_from(["*", "a*", "ab*", "[a*", "?*", "_*", "%*", "\\*"]))


@st.composite
def topic_patterns(draw: st.DrawFn) -> str:
    """A topic pattern, one with an exception mark among them."""
    text = "/".join(draw(st.lists(_levels, min_size=1, max_size=4))) + draw(st.sampled_from(["", "", "/>"]))
    text = draw(st.sampled_from([text, text, text, "!" + text, ">"]))
    try:
        TopicPattern.parse(text)
    except TopicSyntaxError:
        return "a/*"
    return text


@st.composite
def topics_near(draw: st.DrawFn, texts: Sequence[str]) -> str:
    """A topic; often one of those a pattern is about, or one just beside."""
    pattern = draw(st.sampled_from(texts)).removeprefix("!")
    rest = draw(st.sampled_from(["", "a", "b/c", "/"]))
    if pattern.endswith(">"):
        pattern = pattern[:-1] + rest
    near = "".join(draw(_pieces) if c == "*" and draw(st.booleans()) else c for c in pattern)
    return draw(st.sampled_from([near or "a"]) | _topics)
