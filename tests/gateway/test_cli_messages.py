"""`rewind send` and `rewind tail` against a gateway: what goes in comes out, and what is wrong is a sentence."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from click.testing import CliRunner, Result

from gateway.cli import main
from gateway.cli.message_text import as_line, as_object
from tests.support.messages import data
from tests.support.running import RunningGateway, settings_for

Rewind = Callable[..., Result]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    yield
    structlog.reset_defaults()


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[RunningGateway]:
    with RunningGateway(settings_for(tmp_path / "data")) as running:
        yield running


@pytest.fixture
def rewind(gateway: RunningGateway) -> Rewind:
    """The command, at this gateway."""

    def invoke(*arguments: str, input: str | bytes | None = None) -> Result:
        return CliRunner().invoke(main, [*arguments, "--url", gateway.url], input=input)

    return invoke


def objects(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_lines_go_in_and_come_out(rewind: Rewind) -> None:
    """Each line of the input is a message, in order, as it was; how many were accepted is said on stderr."""
    sent = rewind("send", "orders", input="one\n\nthree ü\n")
    assert (sent.exit_code, sent.stdout, sent.stderr) == (0, "", "3 of 3 accepted\n")
    found = objects(rewind("tail", "log://#queue/orders", "--from", "beginning", "--until", "now", "--json"))
    assert [message["body"] for message in found] == ["one", "", "three ü"]
    assert [message["offset"] for message in found] == [1, 2, 3]
    assert [message.get("replayEnd") for message in found] == [None, None, True]
    assert {message["topic"] for message in found} == {"#queue/orders"}


def test_what_is_said_of_messages(rewind: Rewind, tmp_path: Path) -> None:
    """A topic, properties, a subject, a content type, and a file as one message with its line ends."""
    file = tmp_path / "message.xml"
    file.write_bytes(b"<a>\r\n</a>\n")
    options = ["--property", "k=v=w", "--property", "n=1", "--subject", "s", "--content-type", "text/xml"]
    assert rewind("send", "--topic", "a/b", "--whole", *options, str(file), "--quiet").output == ""
    (found,) = objects(rewind("tail", "log://a/>", "--from", "#1", "--count", "1", "--json"))
    assert found["body"] == "<a>\r\n</a>\n"
    assert found["properties"] == {"k": "v=w", "n": "1"}
    assert (found["topic"], found["subject"], found["contentType"]) == ("a/b", "s", "text/xml")


def test_a_line_for_a_person(rewind: Rewind) -> None:
    """Without --json a message is one line: offset, arrival, topic, what it is called, and its body."""
    rewind("send", "--topic", "a/b", "--subject", "s", input="hello\tworld\n")
    line = rewind("tail", "log://a/b", "--from", "beginning", "--count", "1").stdout
    assert line.startswith("#1 2")
    assert line.endswith("Z a/b subject=s hello\\tworld\n")


def test_a_queue_is_looked_at_and_not_emptied(rewind: Rewind, gateway: RunningGateway) -> None:
    """A look at a queue takes nothing off it; --consume does."""
    rewind("send", "orders", input="1\n2\n3\n")
    assert len(objects(rewind("tail", "orders", "--count", "3", "--json"))) == 3
    assert gateway.depth("orders") == 3
    assert [m["body"] for m in objects(rewind("tail", "orders", "--count", "2", "--consume", "--json"))] == [
        "1",
        "2",
    ]
    assert [m["body"] for m in objects(rewind("tail", "orders", "--count", "1", "--consume", "--json"))] == [
        "3"
    ]


def test_a_queue_is_rewound_only_on_purpose(rewind: Rewind) -> None:
    """A start for a queue needs --consume, and the refusal says what to do in its place."""
    rewind("send", "orders", input="1\n2\n")
    refused = rewind("tail", "orders", "--from", "beginning")
    assert refused.exit_code == 2
    assert "log://#queue/orders" in refused.stderr
    assert len(objects(rewind("tail", "orders", "--count", "2", "--consume", "--json"))) == 2
    again = rewind("tail", "orders", "--from", "beginning", "--count", "2", "--consume", "--json")
    assert [message["body"] for message in objects(again)] == ["1", "2"]


def test_a_start_before_the_log(rewind: Rewind) -> None:
    """A log younger than the start asked for is refused with what to do, and --clamp begins at its beginning."""
    rewind("send", "orders", input="1\n")
    refused = rewind("tail", "log://>", "--from", "1D", "--until", "now")
    assert (refused.exit_code, "subcode 143" in refused.stderr) == (1, True)
    found = objects(rewind("tail", "log://>", "--from", "1D", "--clamp", "--until", "now", "--json"))
    assert [message["body"] for message in found] == ["1"]


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["tail", "log://>", "--from", "nonsense"], 2, "not a replay start"),
        (["tail", "log://>", "--from", "point:eod"], 1, "no point named 'eod'"),
        (["tail", "log://>", "--from", "#7"], 1, "subcode 156"),
        (["tail", "log://>", "--consume"], 2, "--consume is for queues"),
        (["tail", "queue://"], 2, "queue"),
        (["send"], 2, "say where to"),
        (["send", "log://a"], 1, "never sent to"),
        (["send", "orders", "--property", "novalue"], 2, "KEY=VALUE"),
        (["send", "orders", "--vpn", "nowhere"], 1, "nowhere"),
        (["send", "orders", "--topic", "a", __file__], 2, "both say where to"),
    ],
)
def test_what_is_wrong_is_said(rewind: Rewind, arguments: list[str], status: int, says: str) -> None:
    """A mistake ends in a sentence on stderr and a status: 2 for the command line, 1 for what the gateway refused."""
    result = rewind(*arguments, input="x\n")
    assert result.exit_code == status
    assert says in result.stderr
    assert "Traceback" not in result.stderr


def test_a_gateway_that_is_not_there() -> None:
    """No gateway at the address is said with the address."""
    result = CliRunner().invoke(main, ["tail", "log://>", "--url", "amqp://127.0.0.1:1"])
    assert result.exit_code == 1
    assert "amqp://127.0.0.1:1" in result.stderr
    assert "refused" in result.stderr


@pytest.mark.parametrize("url", ["http://127.0.0.1:5672", "amqp://", "amqp:///"])
def test_a_url_of_no_gateway(url: str) -> None:
    """What is no address of AMQP is refused as wrong usage, with what to write."""
    result = CliRunner().invoke(main, ["tail", "log://>", "--url", url])
    assert result.exit_code == 2
    assert "write amqp://HOST:PORT" in result.stderr


def test_a_message_nobody_takes_fails_the_command(tmp_path: Path) -> None:
    """Messages that were not accepted are counted by reason, and the status is 1."""
    from gateway.config import ReplayLog, Vpn  # noqa: PLC0415

    no_log = Vpn(replay_log=ReplayLog(enabled=False))
    with RunningGateway(settings_for(tmp_path / "data", no_log)) as running:
        result = CliRunner().invoke(main, ["send", "--topic", "nobody", "--url", running.url], input="1\n2\n")
    assert result.exit_code == 1
    assert "2 released: no queue and no log takes it" in result.stderr
    assert "0 of 2 accepted" in result.stderr


def test_any_message_can_be_shown() -> None:
    """Binary, values of every kind, sequences: each has a form in JSON and a line."""
    value = bytes.fromhex("005377") + b"\xa3\x03sym"
    sequence = bytes.fromhex("005376") + b"\x45"
    assert as_object(data(b"\xff\x00")) == {"bodyType": "data", "body": {"base64": "/wA="}}
    assert as_object(value) == {"bodyType": "value", "body": "sym"}
    assert as_object(sequence + sequence) == {"bodyType": "sequence", "body": [[], []]}
    assert as_line(value) == "#- sym"
