"""Searches of the log as tests make them, page by page."""

from __future__ import annotations

from collections.abc import Sequence

from amqp_ext.replay_start import parse_text
from amqp_ext.topics import TopicFilter, TopicPattern
from gateway.core.replay.search import Search, search_for
from store.ports import Reader


def search_of(text: str, patterns: Sequence[str] = (">",)) -> Search:
    """The search that a replay start asks for."""
    topics = None if ">" in patterns else TopicFilter([TopicPattern.parse(p) for p in patterns]).matches
    found = search_for(parse_text(text), topics)
    assert found is not None
    return found


def result(
    reader: Reader, what: Search, patterns: Sequence[str], position: int, end: int
) -> tuple[int | None, int]:
    """What a search finds, page by page, and how many pages that took."""
    pages = 0
    while position < end:
        page = reader.search_page(what, patterns, position, end)
        assert position < page.position <= end, "each page gets on, and none goes too far"
        pages, position = pages + 1, page.position
        if page.found is not None:
            return page.found, pages
    return None, pages
