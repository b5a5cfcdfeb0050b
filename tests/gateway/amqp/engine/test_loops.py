"""The loops in C behave as those in Python: the same traffic has the same output, compared octet by octet."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
from cproton_ffi import ffi, lib
from hypothesis import example, given
from hypothesis import strategies as st

from amqp_ext.message.annotations import OutgoingRow, Splicer
from gateway.amqp import engine
from gateway.amqp.engine import python_loops
from gateway.amqp.engine.loops import choose
from gateway.amqp.engine.native import ACCEPTED, DELIVERY, MODIFIED, REJECTED, RELEASED, TRANSACTIONAL, Stop
from tests.amqp_ext.message.test_annotations import GENERATION, contents, ids, messages, row
from tests.gateway.amqp.engine.wire import MAX_MESSAGE_BYTES, End, Peer

NATIVE = choose(None)
LOOPS = list({id(loops): loops for loops in (python_loops, NATIVE.loops)}.values())
if NATIVE.name == "native":
    from gateway.amqp.engine import _transfers as transfers
    from gateway.amqp.engine import native_loops
needs_native = pytest.mark.skipif(
    NATIVE.name != "native", reason=f"the loops in C are not here: {NATIVE.why}"
)

SENDERS, RECEIVERS = ("s0", "s1"), ("r0", "r1", "r2-settled")
OUTCOMES = (ACCEPTED, ACCEPTED, ACCEPTED, RELEASED, MODIFIED, REJECTED, TRANSACTIONAL, 0)

senders, receivers = st.sampled_from(SENDERS), st.sampled_from(RECEIVERS)
sizes = st.sampled_from((0, 1, 10, 300, 5_000, 17_000, MAX_MESSAGE_BYTES, MAX_MESSAGE_BYTES + 1))
small = st.sampled_from((0, 1, 10, 300, 5_000))
kinds = st.sampled_from(("plain", "plain", "plain", "batch", "transactional"))
counts = st.integers(1, 12)

said = st.lists(
    st.tuples(st.sampled_from((0, 0, 1, 3)), counts, st.sampled_from(OUTCOMES), st.booleans()), max_size=3
)
"""Dispositions: the first delivery's index, how many, the outcome, whether they are settled."""

steps = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), senders, st.lists(small, min_size=1, max_size=8), kinds, st.booleans()),
        st.tuples(st.just("begin"), senders, sizes, kinds),
        st.tuples(st.just("finish"), senders, st.booleans()),
        st.tuples(st.just("abort"), senders),
        st.tuples(st.just("abort half way"), senders, sizes, kinds),
        st.tuples(st.just("credit"), receivers, counts, st.booleans()),
        st.tuples(st.just("send"), receivers, st.lists(sizes, min_size=1, max_size=12)),
        st.tuples(st.just("deliver"), receivers, st.lists(small, min_size=1, max_size=12), said),
        st.tuples(st.just("deliver"), receivers, st.lists(small, min_size=1, max_size=12), said),
        st.tuples(st.just("acknowledge"), receivers, said),
        st.tuples(
            st.just("settle"),
            senders,
            counts,
            st.sampled_from(("accept", "release", "reject", "provisional")),
        ),
        st.tuples(st.sampled_from(("confirm", "commit")), receivers),
        st.tuples(st.sampled_from(("detach", "refuse", "attach")), st.sampled_from(SENDERS + RECEIVERS)),
        st.just(("exchange",)),
        st.just(("exchange",)),
    ),
    max_size=60,
)


def attach(peer: Peer, name: str) -> None:
    peer.attach(name, sends=name.startswith("s"), settled=name.endswith("settled"))


def traffic(loops: Any, script: list[Any]) -> tuple[list[Any], list[bytes]]:
    """What our end's links were told, and what it wrote, when this script is run on a connection."""
    end, peer = connected(loops, *SENDERS, *RECEIVERS)
    for what, *arguments in [*script, ("exchange",)]:
        name = arguments[0] if arguments else ""
        ours = end.links.get(name)
        match what:
            case "publish":
                for size in arguments[1]:
                    peer.begin(name, b"x" * size, kind=arguments[2])
                    peer.finish(name, settled=arguments[3])
            case "begin":
                peer.begin(name, b"y" * arguments[1], kind=arguments[2])
            case "finish":
                peer.finish(name, settled=arguments[1])
            case "abort":
                peer.abort(name)
            case "abort half way":
                peer.begin(name, b"w" * arguments[1], kind=arguments[2])
                peer.exchange(end)
                peer.abort(name)
            case "credit":
                peer.credit(name, arguments[1], drain=arguments[2])
            case "acknowledge":
                peer.acknowledge(name, arguments[1])
            case "send" if ours:
                ours.send([b"z" * size for size in arguments[1]])
            case "deliver" if ours:
                # The peer gives credit and gets the messages.
                peer.credit(name, len(arguments[1]), drain=False)
                peer.exchange(end)
                if name in end.links:
                    ours.send([b"z" * size for size in arguments[1]])
                    peer.exchange(end)
                peer.acknowledge(name, arguments[2])
            case "settle" if ours:
                ours.settle(*arguments[1:])
            case "confirm" if ours:
                ours.confirm()
            case "commit" if ours:
                ours.commit()
            case "detach":
                peer.detach(name)
            case "refuse":
                end.detach(name)
            case "attach" if name not in peer.links and ours is None:
                attach(peer, name)
            case "exchange":
                peer.exchange(end)
    for name, link in end.links.items():
        # How many deliveries we keep, and how many the engine keeps.
        kept = link.transfers.unsettled_count if name.startswith("r") else len(link.held)
        end.told.append({name: (kept, link.link.unsettled)})
    return end.told, end.written


@needs_native
@given(steps)
def test_both_loops_say_the_same(script: list[Any]) -> None:
    """Whatever the peer and we do, both tell the links the same and write the same octets."""
    assert traffic(NATIVE.loops, script) == traffic(python_loops, script)


def sent(
    loops: Any,
    batches: list[list[OutgoingRow]],
    attempts: dict[int, int],
    end_id: int | None,
    stream_offset: bool,
    in_batch: bool,
    replay_name: str,
) -> list[bytes]:
    """The octets that are written when these messages are sent on one link."""
    end, peer = connected(loops, "r0-settled", credit=100)
    splicer = Splicer(GENERATION, stream_offset=stream_offset, replay_name=replay_name)
    link = end.links["r0-settled"].transfers._handle
    for rows in batches:
        if in_batch:
            loops.send_batch(link, rows, splicer, attempts, end_id)
        else:
            loops.send(link, rows, splicer, attempts, end_id, None)
    peer.exchange(end)
    return end.written


long_topics = st.text(max_size=20) | st.sampled_from(
    ("x" * 255, "x" * 256, "ö" * 127, "ö" * 128, "x" * 2_000)
)


@needs_native
@given(
    st.lists(
        st.lists(
            messages | st.builds(row, contents, ids, st.integers(-(2**63), 2**63 - 1), long_topics),
            min_size=1,
            max_size=8,
        ),
        min_size=1,
        max_size=3,
    ),
    st.just({}) | st.dictionaries(ids, st.integers(1, 3), max_size=2),
    st.none() | ids,
    st.booleans(),
    st.booleans(),
    st.sampled_from(["", "monday", "ö" * 200, "x" * 1_100]),
)
@example([[row(b"\x00Su\xa0\x01x" * 5_000, 1, 0, "large")]], {}, None, False, False, "")
def test_both_loops_write_the_same_fronts(
    batches: list[list[OutgoingRow]],
    attempts: dict[int, int],
    end_id: int | None,
    stream_offset: bool,
    in_batch: bool,
    replay_name: str,
) -> None:
    """Whatever header and annotations a message has, C writes the same front as the splicer."""
    arguments = batches, attempts, end_id, stream_offset, in_batch, replay_name
    assert sent(NATIVE.loops, *arguments) == sent(python_loops, *arguments)


def test_the_environment_chooses_the_loops_in_python() -> None:
    """
    ``REWIND_NATIVE=0`` chooses them and is given as the reason; another value chooses those in C if they are there.
    """
    assert choose("0") == (python_loops, "python", "REWIND_NATIVE=0")
    assert choose("yes") == choose(None)


def test_the_loops_in_python_run_where_there_are_none_in_c(monkeypatch: pytest.MonkeyPatch) -> None:
    """The choice says that they are slower, and why they run; with ``REWIND_NATIVE=1`` it is an error instead."""
    monkeypatch.delattr(engine, "native_loops", raising=False)
    monkeypatch.setitem(sys.modules, f"{engine.__name__}.native_loops", None)
    chosen = choose(None)
    assert chosen.loops is python_loops
    assert str(chosen).startswith("python (slower than native: ")
    with pytest.raises(ImportError):
        choose("1")


def connected(loops: Any, *names: str, credit: int = 0) -> tuple[End, Peer]:
    """Two ends with links of these names, and with this credit on the first."""
    end, peer = End(loops), Peer()
    for name in names:
        attach(peer, name)
    peer.exchange(end)
    if credit:
        peer.credit(names[0], credit, drain=False)
        peer.exchange(end)
    return end, peer


def publish(end: End, peer: Peer) -> None:
    """The peer sends three messages; our engine has them, and nothing has taken them."""
    for _ in range(3):
        peer.begin("s0", b"message", kind="plain")
        peer.finish("s0", settled=False)
    end.take(peer.output())


@pytest.mark.parametrize("loops", LOOPS)
def test_what_a_callback_raises_comes_through(loops: Any) -> None:
    """The message that the callback was asked about stays; only messages taken earlier in that call are lost."""
    end, peer = connected(loops, "s0")
    publish(end, peer)
    asked: list[bytes] = []

    def is_batch(tag: bytes) -> bool:
        asked.append(tag)
        if len(asked) == 2:
            raise ZeroDivisionError
        return False

    link = loops.handle_of(end.links["s0"].link._impl)
    with pytest.raises(ZeroDivisionError):
        loops.take_messages(link, 1_000, is_batch)
    assert asked == [b"plain-1", b"plain-2"]
    contents, deliveries, stop = loops.take_messages(link, 1_000, None)
    assert (contents, len(deliveries), stop) == ([b"message"] * 2, 2, Stop.NOTHING)


def counted(objects: list[Any]) -> list[int]:
    """The number of references to each object."""
    return [sys.getrefcount(each) for each in objects]


@pytest.mark.parametrize("loops", LOOPS)
def test_nothing_of_a_call_is_held_after_it(loops: Any) -> None:
    """
    Only the caller refers to contents, ids and fronts: their reference counts are the same after the call as before.
    """
    end, peer = connected(loops, "r0", "s0", credit=2)
    publish(end, peer)
    link = loops.handle_of(end.links["s0"].link._impl)
    contents, deliveries, _ = loops.take_messages(link, 1_000, None)
    assert counted(contents) == counted([bytes(100), bytes(101), bytes(102)])
    loops.settle(deliveries, ACCEPTED)
    content, number, splicer, unsettled = bytes(1_000), 2**40, Splicer(1), {}
    rows = [
        (number, 1_000, "topic", 0, 0, None, content),
        (number + 1, 1_000, "topic", 0, 0, None, content),
    ]
    before = counted([content, number, *splicer.pieces])
    sending = end.links["r0"].transfers
    assert loops.send(loops.handle_of(sending._link), rows, splicer, {}, None, unsettled) == 2_000
    assert list(unsettled.values()) == [number, number + 1]
    peer.exchange(end)
    peer.acknowledge("r0", [(0, 2, ACCEPTED, False)])
    end.take(peer.output())
    accepted: list[int] = []
    confirm: list[Any] = []
    collector = loops.handle_of(end.collector._impl)
    while loops.top(collector)[0] != DELIVERY:
        loops.drop(collector)
    assert loops.take_outcomes(collector, unsettled, accepted, confirm) == 2
    assert (accepted, len(confirm), unsettled) == ([number, number + 1], 2, {})
    assert counted(confirm) == counted([object(), object()])
    accepted.clear()
    assert counted([content, number, *splicer.pieces]) == before


@needs_native
@pytest.mark.parametrize(
    ("name", "arguments", "error"),
    [
        ("top", (0,), ValueError),
        ("top", ("1",), TypeError),
        ("skip", (1, 2), TypeError),
        ("skip", (0, 28, 1), ValueError),
        ("skip", (1, 28, 0), ValueError),
        ("take_messages", (0, 10, None), ValueError),
        ("take_messages", (1, 2**63, None), OverflowError),
        ("take_messages", (1, 10), TypeError),
        ("settle", ([0], ACCEPTED), ValueError),
        ("settle", (1, ACCEPTED), TypeError),
        ("settle", ([1], 2**31), OverflowError),
        ("send", (0, [], None, repr, {}, False), ValueError),
        ("send", (1, [()], None, repr, {}, False), TypeError),
        ("send", (1, [(1, 0, "", 0, 0, None, "")], None, repr, {}, False), TypeError),
        ("send", (1, [("1", 0, "", 0, 0, None, b"")], None, repr, {}, False), TypeError),
        ("send", (1, [(1, "0", "", 0, 0, None, b"")], None, repr, {}, False), TypeError),
        ("send", (1, [(1, 0, "", None, 0, None, b"")], None, repr, {}, False), TypeError),
        ("send", (1, [(1, 0, "", 1, 0, None, b"")], None, repr, {}, False), ValueError),
        ("send", (1, [(1, 0, "", -1, 0, None, b"")], None, repr, {}, False), ValueError),
        ("send", (1, [(2**63, 0, "", 0, 0, None, b"")], None, repr, {}, False), OverflowError),
        ("send", (1, [(1, 0, "", 0, 0, None, b"")], None, repr, {}, False), TypeError),
        ("send", (1, [(1, 0, "", 0, 0, None, b"")], None, None, {}, False), TypeError),
        ("send", (1, [(1, 0, 0, 0, 0, None, b"")], (b"",) * 5, repr, {}, False), TypeError),
        ("send", (1, [(1, 0, "\ud800", 0, 0, None, b"")], (b"",) * 5, repr, {}, False), UnicodeEncodeError),
        ("send", (1, [(1, 2**63, "", 0, 0, None, b"")], (b"",) * 5, repr, {}, False), OverflowError),
        ("send", (1, [], (b"",) * 4, repr, {}, False), TypeError),
        ("send", (1, [], (b"",) * 4 + ("",), repr, {}, False), TypeError),
        ("send", (1, [], None, repr, [], False), TypeError),
        ("send", (1, 1, None, repr, {}, False), TypeError),
        ("take_outcomes", (1, [], [], []), TypeError),
        ("take_outcomes", (1, {}, (), []), TypeError),
        ("take_outcomes", (1, {}, [], ()), TypeError),
        ("pull", (0,), ValueError),
    ],
)
def test_wrong_arguments_are_errors(name: str, arguments: tuple[Any, ...], error: type[Exception]) -> None:
    """A wrong address, row or list is an error, and the engine is not called."""
    with pytest.raises(error):
        getattr(transfers, name)(*arguments)


@needs_native
def test_an_engine_that_is_another_is_not_called() -> None:
    """Each engine function that C calls exists, with the signature that C was written for; otherwise binding fails."""
    signatures: dict[str, str] = transfers.SIGNATURES
    for name, signature in signatures.items():
        assert ffi.typeof(ffi.addressof(lib, name)).cname == signature
    with pytest.raises(ImportError, match=r"the engine's pn_link_send is ssize_t\(\*\)"):
        native_loops._address_of("pn_link_send", "void(*)(void)")
    with pytest.raises(ImportError, match="the engine has no pn_no_such_thing"):
        native_loops._address_of("pn_no_such_thing", "void(*)(void)")
    for addresses in ({}, dict.fromkeys(signatures, 0)):
        with pytest.raises(KeyError):
            transfers.bind(addresses)


def calls(end: End, peer: Peer) -> list[Callable[[], Any]]:
    """Calls of the loops in C, on ends where each has something to do."""
    loops = NATIVE.loops
    outgoing, collector = end.links["r0"].transfers, loops.handle_of(end.collector._impl)
    rows = [(2**40 + n, 1_000, "topic" * 100 * n, 0, 0, None, b"message") for n in range(3)]
    splicer = Splicer(1)
    return [
        lambda: loops.take_messages(loops.handle_of(end.links["s0"].link._impl), 1_000, lambda _: False),
        lambda: loops.send(outgoing._handle, rows, splicer, {}, None, {}),
        lambda: loops.send_batch(outgoing._handle, rows, splicer, {}, None),
        lambda: loops.top(collector),
        lambda: loops.take_outcomes(collector, outgoing._unsettled, [], []),
        lambda: loops.pull(loops.handle_of(end.transport._impl)),
    ]


@needs_native
def test_memory_that_is_not_there_is_an_error() -> None:
    """Whichever of its allocations fails, a call raises MemoryError, and the interpreter goes on as before."""
    testcapi = pytest.importorskip("_testcapi")
    failed = 0
    for number in range(6):
        for allocation in range(1, 40):
            end, peer = connected(NATIVE.loops, "r0", "s0", credit=3)
            end.links["r0"].send([b"message"] * 3)
            peer.exchange(end)
            peer.acknowledge("r0", [(0, 3, ACCEPTED, False)])
            publish(end, peer)
            call = calls(end, peer)[number]
            testcapi.set_nomemory(allocation, allocation + 1)
            try:
                call()
            except MemoryError:
                failed += 1
            finally:
                testcapi.remove_mem_hooks()
    assert failed > 20


@needs_native
@pytest.mark.parametrize("in_batch", [False, True])
def test_a_front_that_python_makes_is_let_go_of(in_batch: bool) -> None:
    """It is copied into the engine, and the call keeps no reference to it."""
    end, _ = connected(NATIVE.loops, "r0", credit=3)
    front = bytes(1_000)
    before = counted([front])
    rows = [(number, 1_000, "topic", 0, 0, None, b"message") for number in range(1, 4)]
    link = end.links["r0"].transfers._handle
    assert transfers.send(link, rows, None, lambda _: front, None, in_batch) == 21
    assert counted([front]) == before
    assert end.output().count(front) == 3
