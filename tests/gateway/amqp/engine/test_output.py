"""What the engine writes: output through a translation, frames of 512 bytes, and answers to flows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from amqp_ext.codec import Symbol, UInt
from gateway.amqp.engine import output as module
from gateway.amqp.engine.output import Output
from tests.gateway.amqp.engine.conftest import Opened
from tests.gateway.amqp.spec.conftest import ScriptedPeer, in_transaction
from tests.support.client import Client, Refused, texts
from tests.support.frames import (
    DISPOSITION,
    FLOW,
    OPEN,
    TRANSFER,
    WINDOW,
    Frame,
    flow_frame,
    frame,
    transfer_frame,
)
from tests.support.messages import body_of, data, message_to
from tests.support.peer import OK, Peer
from tests.support.running import RunningGateway

# --- An engine's output through a translation: whole frames, each translated once -------------------------------------


class Wire:
    """An output whose engine produces ``says`` piece by piece, with a socket that takes all of it."""

    def __init__(self) -> None:
        self.says: list[bytes] = []
        self.written: list[bytes] = []
        self.is_full = False
        self.output = Output(1_000, pytest.fail)
        self.holds = True
        names = SimpleNamespace(saw=lambda data: None, written=lambda: None)
        links: Any = SimpleNamespace(names=names, is_waiting=False, buffered_bytes=1)
        gate: Any = SimpleNamespace(holds=lambda: self.holds, wait=lambda resume: None)
        transport: Any = SimpleNamespace(_impl=self, pending=lambda: 0)
        self.output.connect(self)  # type: ignore[arg-type]
        self.output.begin(transport, links, None)
        self.output.watch(gate)

    def pull(self) -> bytes:
        return self.says.pop(0) if self.says else b""

    def write(self, data: bytes) -> None:
        self.written.append(data)
        if self.is_full:
            self.output.pause()

    def is_closing(self) -> bool:
        return False


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Iterator[Wire]:
    with asyncio.Runner() as runner:
        loops = SimpleNamespace(handle_of=lambda impl: impl, pull=lambda handle: wire.pull())
        monkeypatch.setattr(module, "LOOPS", loops)
        wire = runner.run(_made())
        yield wire


async def _made() -> Wire:
    return Wire()


def bracketed(data: bytes) -> bytes:
    return b"[" + data + b"]"


def test_what_was_begun_to_be_written_is_not_translated(wire: Wire) -> None:
    """
    A frame may be written in part; from then on, all of the engine's output is read, however little the socket takes.
    """
    wire.says, wire.is_full = [b"fra", b"me"], True
    wire.output.flush()
    wire.output.translate(bracketed)
    wire.says = [b"oth", b"er"]
    wire.output.resume()
    assert wire.written == [b"fra", b"me", b"[other]"]
    wire.output.translate(bytes)
    wire.says = [b"third"]
    wire.output.resume()
    assert wire.written[3:] == [b"[third]"]


def test_what_is_held_back_is_translated_once(wire: Wire) -> None:
    """As it is produced; what was produced before is not translated."""
    change: Callable[[bytes], bytes] = bytes.upper
    wire.holds = False
    wire.says = [b"before "]
    wire.output.translate(bracketed)
    wire.says = [b"cut", b"ted"]
    wire.output.rewrite(change)
    wire.holds = True
    wire.output.flush()
    assert b"".join(wire.written) == b"before [CUTTED]"


# --- A peer with the smallest frames there are, 512 bytes (AMQP 1.0 section 2.4.1) ------------------------------------

NAME = "q" * 150


@pytest.fixture
def client(gateway: RunningGateway) -> Iterator[Client]:
    with Client(gateway.url, max_frame_size=512) as client:
        yield client


def test_an_answer_leaves_out_what_there_is_no_room_for(client: Client) -> None:
    """The filters are always in it; the log's bounds are left out first, then the resolved start."""
    client.sender(NAME).send_all([data(0)])
    short = client.receiver(NAME)
    assert short.start["from"] == "live"
    selector = {"apache.org:selector-filter:string": f"a IS NULL OR b = '{'x' * 60}'"}
    long = client.receiver(NAME, filters=selector)
    assert set(long.filters) == set(selector)
    assert texts(long.drain()) == ["0"]


def test_a_reader_is_told_where_it_starts_while_there_is_room(client: Client) -> None:
    """With an address of ordinary length, there is room for the resolved start."""
    client.sender("orders").send_all([data(0)])
    reader = client.receiver("log://#queue/orders?replay-start=beginning")
    assert reader.start["offset"] == 1
    assert texts(reader.drain()) == ["0"]


def test_an_outcome_is_cut_to_what_there_is_room_for(gateway: RunningGateway) -> None:
    """The text of a rejected message, in a transaction or without, is cut like that of a refused link."""
    with ScriptedPeer.connect(gateway.host_and_port()) as peer:
        assert isinstance(peer, ScriptedPeer)
        assert peer.anonymous() == OK
        peer.send(frame(OPEN, ["small", None, UInt(512)]))
        peer.expect(OPEN)
        peer.begin()
        peer.attach(0)
        peer.attach_coordinator(1)
        txn_id = peer.declare(1, 0)
        for number, state in ((1, None), (2, in_transaction(txn_id))):
            peer.transfer(0, number, message_to("log://" + "a" * 3_000, b""), state=state)
            told = peer.skip_to(DISPOSITION)
            outcome = told.field(4) if state is None else told.field(4).value[1]
            text = outcome.value[0].value[1]
            assert (text[:8], text[-1]) == ("'log://a", "…")
            assert 440 < len(frame(told.code, told.fields)) <= 512


@pytest.mark.parametrize(("bad", "end"), [("z" * 150, "match:<selector>."), ("é" * 110, "…")])
def test_a_refusal_is_cut_to_what_there_is_room_for(client: Client, bad: str, end: str) -> None:
    """Condition and info are whole; a text that does not fit is cut at its end, with an ellipsis."""
    with pytest.raises(Refused, match="is not a replay start") as refused:
        client.receiver(f"log://{NAME}", filters={"rewind:replay-start": bad})
    assert (refused.value.name, refused.value.subcode) == ("amqp:invalid-field", 139)
    assert refused.value.replay_error == "unknown-start"
    assert refused.value.text.endswith(end)
    client.sender("orders").send_all([data("the connection lives")])


# --- Flows that ask for an echo or a drain, in raw frames -------------------------------------------------------------


def flow(*link: Any, drain: bool | None = None, echo: bool | None = None, properties: Any = None) -> bytes:
    """A flow of the session, or of a link with this handle, delivery-count and credit."""
    state = [None if number is None else UInt(number) for number in (*link, *[None] * (3 - len(link)))]
    return frame(FLOW, [UInt(0), UInt(WINDOW), UInt(0), UInt(WINDOW), *state, None, drain, echo, properties])


def link_of(said: Frame) -> tuple[Any, Any, Any, bool]:
    """Handle, delivery-count, credit and drain of a flow."""
    return said.field(4), said.field(5), said.field(6), said.field(8, False)


def nothing_more(peer: Peer) -> None:
    """The gateway has nothing else to send: its next frame is the answer to an echo of the session."""
    peer.send(flow(echo=True))
    assert peer.expect(FLOW).field(4) is None


def test_an_echo_is_answered_with_the_state_of_the_session_or_of_a_publishers_link(opened: Opened) -> None:
    """
    A flow without a handle is answered with the session's state if it asks for an echo, and otherwise not at all. A
    publisher that asks on its link gets delivery-count and credit, as often as it asks; its credit stays.
    """
    peer = opened()
    granted = peer.attach_sender("queue://echoed").field(6)
    for count in range(3):
        peer.send(flow())
        peer.send(flow(echo=True))
        said = peer.expect(FLOW)
        assert (said.field(4), said.field(0)) == (None, count)
        peer.send(flow(0, count, echo=True))
        assert link_of(peer.expect(FLOW)) == (0, count, granted - count, False)
        peer.publish(b"one")
    peer.send(flow(0, 3))
    nothing_more(peer)


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        # The peer's state before the two messages arrived.
        ({"count": 0, "credit": 2, "drain": True}, (2, 0, True)),
        # fe2o3-amqp drains with the count that it has processed, which may be less than has arrived.
        ({"count": 1, "credit": 0, "drain": True, "echo": True}, (2, 0, True)),
        ({"count": 1, "credit": 0, "echo": True}, (2, 0, False)),
    ],
)
def test_messages_that_crossed_a_flow_have_used_its_credit_up(
    opened: Opened, seen: dict[str, Any], said: tuple[int, int, bool]
) -> None:
    """The answer's delivery-count includes them: no credit is left, and the peer waits for none."""
    peer = opened()
    peer.attach_sender("queue://drained")
    own = peer.attach_receiver("queue://drained", credit=2).field(1)
    for _ in range(2):
        peer.publish(b"one")
    peer.skip_to(TRANSFER)
    peer.skip_to(TRANSFER)
    peer.send(flow(1, seen["count"], seen["credit"], drain=seen.get("drain"), echo=seen.get("echo")))
    assert link_of(peer.expect(FLOW)) == (own, *said)
    nothing_more(peer)


@pytest.mark.parametrize("echo", [None, True])
def test_a_drain_is_answered_once(opened: Opened, echo: bool | None) -> None:
    """Credit without messages is used up and reported by one flow, whether an echo is asked for or not."""
    peer = opened()
    peer.attach_receiver("queue://drained")
    for drained in (7, 14):
        peer.send(flow(0, drained - 7, 7, drain=True, echo=echo, properties={Symbol("any"): 1}))
        assert link_of(peer.expect(FLOW)) == (0, drained, 0, True)
    nothing_more(peer)


def test_a_drain_waits_for_the_sessions_window(opened: Opened) -> None:
    """
    While the peer's window is closed nothing is drained; once it opens, the message is sent, then the drain is
    answered.
    """
    peer = opened()
    own = peer.attach_receiver("queue://drained").field(1)
    closed = [UInt(0), UInt(0), UInt(0), UInt(WINDOW), UInt(0), UInt(0), UInt(5)]
    peer.send(frame(FLOW, closed))
    other = opened()
    other.attach_sender("queue://drained")
    other.publish(b"one")
    peer.send(frame(FLOW, [*closed, None, False, True]))
    assert link_of(peer.expect(FLOW)) == (own, 0, 5, False)
    peer.send(frame(FLOW, [*closed, None, True, True]))
    peer.send(frame(FLOW, [*closed[:4], None, None, None, None, None, True]))
    assert peer.expect(FLOW).field(4) is None
    peer.send(flow())
    assert body_of(peer.expect(TRANSFER).payload) == b"one"
    assert link_of(peer.expect(FLOW)) == (own, 5, 0, True)


def test_each_of_several_flows_at_once_is_answered(opened: Opened) -> None:
    """Flows that arrive together are answered for their links, in order."""
    peer = opened()
    owns = [peer.attach_receiver(f"queue://q{n}").field(1) for n in range(3)]
    peer.send(*(flow(n, 0, 5 + n, echo=True) for n in (2, 0, 1)), flow_frame(0, 0, 9))
    assert [link_of(peer.expect(FLOW))[:3] for _ in range(3)] == [(owns[n], 0, 5 + n) for n in (2, 0, 1)]
    nothing_more(peer)


def test_a_flow_in_a_message_asks_for_nothing(opened: Opened) -> None:
    """
    Only the peer's frames count: bytes of a message that look like a flow are not one, wherever the transfer is cut.
    """
    peer = opened()
    peer.attach_sender("queue://echoed")
    sent = transfer_frame(0, 0, data(flow(echo=True) + flow(0, 0, echo=True)))
    at = sent.index(flow(echo=True))
    peer.send(sent[:at])
    other = opened()
    other.attach_sender("queue://echoed")
    other.publish(b"by now the first piece is taken")
    peer.send(sent[at:])
    peer._deliveries = 1
    assert peer.frame() is not None
    nothing_more(peer)
