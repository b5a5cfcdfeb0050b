"""What is made of the engine's errors, and of the close frame it writes for them."""

from __future__ import annotations

import pytest
from proton import Condition

from gateway.amqp.engine.conditions import CloseError
from tests.support.frames import CLOSE, frame, parse

ERROR = CloseError("amqp:illegal-state", "not now")


@pytest.mark.parametrize(
    ("said", "condition", "text"),
    [
        ("no such handle: 7", "amqp:session:unattached-handle", "handle 7"),
        ("no such channel: 5 (connection aborted)", "amqp:illegal-state", "channel 5"),
        ("link name already attached: a{b}", "amqp:not-allowed", "'a{b}'"),
        ("connection aborted", "amqp:decode-error", "0x10 for open"),
        (
            "remote channel 9 is above it. (connection aborted)",
            "amqp:as-it-is",
            "remote channel 9 is above it.",
        ),
        ("something new", "amqp:as-it-is", "something new"),
    ],
)
def test_an_error_of_the_engine_gets_its_condition(said: str, condition: str, text: str) -> None:
    """What the engine finds is said with the specification's condition; what is not known goes as it is."""
    word = CloseError.of(Condition("amqp:as-it-is", said))
    assert word.condition == condition
    assert text in word.text
    assert "aborted" not in word.text


def test_the_last_frame_is_replaced() -> None:
    """What was to be written before the close frame stays as it was, even where it looks like one."""
    before = frame(CLOSE, []) + frame(0x14, [], b"\x02\x00\x00\x00\x00\x53\x18")
    output = ERROR.put_into(before + frame(CLOSE, ["the engine's words"]))
    assert output.startswith(before)
    closed = parse(output, len(before), len(output))
    assert closed is not None
    assert closed.code == CLOSE
    assert [str(part) for part in closed.fields[0].value] == ["amqp:illegal-state", "not now"]


@pytest.mark.parametrize(
    "output", [b"", b"AMQP\x00\x01\x00\x00", frame(0x14, [], b"\x02\x00\x00\x00\x00\x53\x18 more")]
)
def test_where_no_close_frame_is_last_nothing_is_replaced(output: bytes) -> None:
    """Output that does not end with a close frame goes as it is."""
    assert ERROR.put_into(output) == output
