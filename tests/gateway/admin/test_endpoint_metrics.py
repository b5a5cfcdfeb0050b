"""The text of the endpoints' series, read by Prometheus' own parser."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from gateway.admin.metrics import PIECE, EndpointSeries
from gateway.core.endpoint.backlog import Backlog
from gateway.core.endpoint.cursor import Cursor
from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.endpoint.settings import EndpointKind, EndpointSettings
from gateway.core.model import WHOLE


def endpoint(name: str, depth: int) -> Endpoint:
    """A queue with nothing but messages."""
    backlog = Backlog(1, 2, {WHOLE: Cursor(0, messages=depth)})
    return Endpoint(1, name, EndpointKind.QUEUE, EndpointSettings(), 100, backlog)


def depths(series: EndpointSeries) -> list[tuple[str, float]]:
    """Names and depths, as a scraper finds them, in order."""
    families = {family.name: family for family in text_string_to_metric_families("".join(series.text()))}
    found = families["rewind_endpoint_messages"].samples
    assert {sample.labels["vpn"] for sample in found} == {"v"}
    return [(sample.labels["endpoint"], sample.value) for sample in found]


@given(st.lists(st.tuples(st.text(min_size=1), st.integers(0, 2**63)), min_size=1))
def test_every_name_comes_back_as_it_is(named: list[tuple[str, int]]) -> None:
    """Quotes, backslashes, line ends and any other character of a name are those that the parser reads."""
    series = EndpointSeries()
    for name, depth in named:
        series.add("v", endpoint(name, depth), 1)
    assert depths(series) == [(name, depth) for name, depth in named]


def test_many_endpoints_come_in_pieces_and_each_once() -> None:
    """More lines than go into one piece are all there, in order, under one head."""
    series = EndpointSeries()
    count = 2 * PIECE + 1
    for number in range(count):
        series.add("v", endpoint(f"q{number}", number), 1)
    assert max(piece.count("\n") for piece in series.text()) == PIECE
    assert depths(series) == [(f"q{number}", float(number)) for number in range(count)]


def test_what_no_endpoint_has_is_left_out() -> None:
    """Without a replay there is no metric of replays, and without an endpoint no text at all."""
    assert "".join(EndpointSeries().text()) == ""
    series = EndpointSeries()
    series.add("v", endpoint("q", 0), 1)
    assert "replay" not in "".join(series.text())
