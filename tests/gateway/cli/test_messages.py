"""`rewind send` and `rewind tail` against a gateway: messages arrive as they were sent, and errors are sentences."""

from __future__ import annotations

import base64
import json
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from click.testing import CliRunner, Result

from amqp_ext.codec import Timestamp
from amqp_ext.message.json_message import as_object
from gateway.cli import amqp_client as peer
from gateway.cli import main, tail
from gateway.cli.tail import as_line
from gateway.config import ReplayLog, Vpn
from tests.support.client import Client
from tests.support.messages import APPLICATION_PROPERTIES, PROPERTIES, VALUE, data, section
from tests.support.running import RunningGateway, settings_for

Rewind = Callable[..., Result]
PROGRAM = (sys.executable, "-m", "gateway")


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[RunningGateway]:
    with RunningGateway(settings_for(tmp_path / "data")) as running:
        yield running


@pytest.fixture
def rewind(gateway: RunningGateway) -> Rewind:
    """The command, connected to this gateway."""

    def invoke(*arguments: str, input: str | bytes | None = None) -> Result:
        return CliRunner().invoke(main, [*arguments, "--url", gateway.url], input=input)

    return invoke


def objects(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def bodies(result: Result) -> list[Any]:
    return [message["body"] for message in objects(result)]


def test_lines_go_in_and_come_out(rewind: Rewind) -> None:
    """Each line of the input is a message, in order and unchanged; stderr says how many were accepted."""
    sent = rewind("send", "orders", input="one\n\nthree ü\n")
    assert (sent.exit_code, sent.stdout, sent.stderr) == (0, "", "3 of 3 accepted\n")
    found = objects(rewind("tail", "log://#queue/orders", "--from", "beginning", "--until", "now", "--json"))
    assert [message["body"] for message in found] == ["one", "", "three ü"]
    assert [message["offset"] for message in found] == [1, 2, 3]
    assert [message.get("replayEnd") for message in found] == [None, None, True]
    assert {message["topic"] for message in found} == {"#queue/orders"}


def test_what_is_said_of_messages(rewind: Rewind, tmp_path: Path) -> None:
    """A topic, properties, a subject, a content type, and a whole file as one message with its line ends."""
    file = tmp_path / "message.xml"
    file.write_bytes(b"<a>\r\n</a>\n")
    options = ["--property", "k=v=w", "--property", "n=1", "--subject", "s", "--content-type", "text/xml"]
    assert rewind("send", "--topic", "a/b", "--whole", *options, str(file), "--quiet").output == ""
    (found,) = objects(rewind("tail", "log://a/>", "--from", "#1", "--count", "1", "--json"))
    assert found["body"] == "<a>\r\n</a>\n"
    assert found["properties"] == {"k": "v=w", "n": "1"}
    assert (found["topic"], found["subject"], found["contentType"]) == ("a/b", "s", "text/xml")
    line = rewind("tail", "log://a/>", "--from", "#1", "--count", "1").stdout
    # For a person: offset, time of arrival, topic, subject, properties and body.
    assert re.fullmatch(r"#1 2\S+Z a/b subject=s k=v=w n=1 <a>\\r\\n</a>\\n\n", line)


def test_what_is_printed_can_be_sent(rewind: Rewind, gateway: RunningGateway) -> None:
    """Messages printed as JSON and sent again print the same, but for offset, time and topic."""
    with Client(gateway.url) as client:
        client.sender("topic://a/b").send_all(
            [
                section(PROPERTIES, ["id", None, None, "s"])
                + section(APPLICATION_PROPERTIES, {"n": 1})
                + data("one"),
                data(b"\xff"),
                section(VALUE, {"k": [1, None, "x"]}),
            ]
        )
    shown = rewind("tail", "log://a/b", "--from", "beginning", "--until", "now", "--json")
    sent = rewind("send", "--topic", "c", "--json", input=shown.stdout)
    assert (sent.exit_code, sent.stderr) == (0, "3 of 3 accepted\n")
    again = rewind("tail", "log://c", "--from", "beginning", "--until", "now", "--json")
    own = ("offset", "replayId", "enqueuedTime", "topic", "replayEnd")
    one, other = (
        [{key: value for key, value in found.items() if key not in own} for found in objects(result)]
        for result in (shown, again)
    )
    assert one == other
    assert [found["bodyType"] for found in one] == ["data", "data", "value"]


def test_a_line_that_is_no_message_is_named(rewind: Rewind, gateway: RunningGateway) -> None:
    """The other lines are sent, and the exit status is 1; of very many errors only the first are named."""
    sent = rewind("send", "q", "--json", input='{"body":"1"}\n\nno\n{"boddy":1}\n{"body":"2"}\n')
    assert sent.exit_code == 1
    assert "not sent: line 3: The line is not JSON" in sent.stderr
    assert "not sent: line 4: 'boddy' is not a field of a message" in sent.stderr
    assert sent.stderr.endswith("2 of 4 accepted\n")
    assert gateway.depth("q") == 2
    assert len(rewind("send", "q", "--json", input="no\n" * 100).stderr.splitlines()) == 22


def test_a_queue_is_looked_at_and_not_emptied(rewind: Rewind, gateway: RunningGateway) -> None:
    """`tail` browses a queue; with --consume it takes the messages."""
    rewind("send", "orders", input="1\n2\n3\n")
    assert len(objects(rewind("tail", "orders", "--count", "3", "--json"))) == 3
    assert gateway.depth("orders") == 3
    taken = ("tail", "orders", "--consume", "--json", "--count")
    assert (bodies(rewind(*taken, "2")), bodies(rewind(*taken, "1"))) == (["1", "2"], ["3"])


def test_a_queue_is_rewound_only_on_purpose(rewind: Rewind) -> None:
    """A start for a queue needs --consume; the refusal says what else to do."""
    rewind("send", "orders", input="1\n2\n")
    refused = rewind("tail", "orders", "--from", "beginning")
    assert refused.exit_code == 2
    assert "log://#queue/orders" in refused.stderr
    assert len(objects(rewind("tail", "orders", "--count", "2", "--consume", "--json"))) == 2
    again = rewind("tail", "orders", "--from", "beginning", "--count", "2", "--consume", "--json")
    assert bodies(again) == ["1", "2"]


def test_a_start_before_the_log(rewind: Rewind) -> None:
    """A start older than the log is refused with what to do; with --clamp reading begins at the oldest message."""
    rewind("send", "orders", input="1\n")
    refused = rewind("tail", "log://>", "--from", "1D", "--until", "now")
    assert (refused.exit_code, "subcode 143" in refused.stderr) == (1, True)
    assert bodies(rewind("tail", "log://>", "--from", "1D", "--clamp", "--until", "now", "--json")) == ["1"]


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["tail", "log://>", "--from", "nonsense"], 2, "not a replay start"),
        (["tail", "log://>", "--from", "point:eod"], 1, "no point named 'eod'"),
        (["tail", "log://>", "--from", "#7"], 1, "subcode 156"),
        (["tail", "log://>", "--consume"], 2, "--consume is for queues"),
        (["tail", "queue://"], 2, "queue"),
        (["tail", "orders", "--until", "now"], 2, "no start and no end"),
        (["tail", "log://>", "--clamp"], 2, "--clamp needs --from"),
        (["send", ""], 2, "name the target"),
        (["send"], 2, "name the target"),
        (["send", "log://a"], 1, "can only be read"),
        (["send", "orders", "--property", "novalue"], 2, "KEY=VALUE"),
        (["send", "orders", "--json", "--subject", "s"], 2, "a line of --json has"),
        (["send", "orders", "--vpn", "nowhere"], 1, "nowhere"),
        (["send", "orders", "--topic", "a", __file__], 2, "both name the target"),
        (["send", "orders", "--subject", "\udcff"], 1, "not sent: 'utf-8' codec can't encode"),
        (["send", "\udcff"], 2, "'\\udcff' is not valid Unicode"),
    ],
)
def test_what_is_wrong_is_said(rewind: Rewind, arguments: list[str], status: int, says: str) -> None:
    """An error is a sentence on stderr and a status: 2 for the command line, 1 for a refusal by the gateway."""
    result = rewind(*arguments, input="x\n")
    assert result.exit_code == status
    assert says in result.stderr
    assert "Traceback" not in result.stderr
    assert " of 0 accepted" not in result.stderr


@pytest.mark.parametrize(
    ("url", "status", "says"),
    [
        ("amqp://127.0.0.1:1", 1, "refused"),
        ("amqp://nowhere.invalid", 1, "amqp://nowhere.invalid: no such host"),
        ("http://127.0.0.1:5672", 2, "write amqp://HOST:PORT"),
        ("amqp://", 2, "write amqp://HOST:PORT"),
        ("amqp:///", 2, "write amqp://HOST:PORT"),
        ("amqp://host:port", 2, "has no port"),
        ("host:99999", 2, "has no port"),
        ("amqp://host:0", 2, "has no port"),
    ],
)
def test_where_no_gateway_is(url: str, status: int, says: str) -> None:
    """The sentence has the address; a URL that is not AMQP is wrong usage, with an example of a right one."""
    result = CliRunner().invoke(main, ["tail", "log://>", "--url", url])
    assert result.exit_code == status
    assert url in result.stderr and says in result.stderr


def test_a_server_that_does_not_speak_amqp(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that accepts the connection and sends nothing is given up after a timeout."""
    monkeypatch.setattr(peer, "ANSWER_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"amqp://127.0.0.1:{server.getsockname()[1]}"
        result = CliRunner().invoke(main, ["tail", "log://>", "--url", url])
    assert result.exit_code == 1
    assert "the peer does not speak AMQP" in result.stderr


def test_who_is_not_let_in(rewind: Rewind, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sentence has the user's name."""
    monkeypatch.setenv("REWIND_PASSWORD", "guessed")
    result = rewind("tail", "log://>", "--user", "bob")
    assert result.exit_code == 1
    assert "'bob' was refused" in result.stderr


def test_where_to_go_on(rewind: Rewind, gateway: RunningGateway) -> None:
    """If the gateway stops, the reader is told where to continue; from there no message is missing."""
    rewind("send", "--topic", "a/b", input="1\n2\n3\n")
    shown: list[str] = []

    def stop_at_2(line: str, **_: Any) -> None:
        shown.append(line)
        if line.endswith(" 2"):
            stopping.start()

    stopping = threading.Thread(target=gateway.stop)
    with patch("gateway.cli.tail.print", stop_at_2, create=True):
        result = rewind("tail", "log://a/b?rate=2", "--from", "beginning")
    stopping.join()
    assert result.exit_code == 1
    replay_id = result.stderr.strip().rpartition("--from ")[2]
    gateway.start()
    rest = CliRunner().invoke(
        main, ["tail", "log://a/b", "--from", replay_id, "--until", "now", "--url", gateway.url]
    )
    assert [line[-1] for line in [*shown, *rest.stdout.splitlines()]] == ["1", "2", "3"]


def test_a_stream_has_starts(rewind: Rewind) -> None:
    """A stream is read from any start, and keeps its messages."""
    rewind("send", "audit?kind=stream", input="1\n2\n")
    for _ in range(2):
        assert bodies(rewind("tail", "audit?kind=stream", "--from", "#2", "--until", "now", "--json")) == [
            "2"
        ]


@pytest.mark.parametrize("page", [2, 500])
def test_the_newest_first(rewind: Rewind, monkeypatch: pytest.MonkeyPatch, page: int) -> None:
    """--reverse reads each message once, by falling ids, from an end to a start, with any page size."""
    monkeypatch.setattr(tail, "PAGE", page)
    rewind("send", "audit?kind=stream", input="1\n2\n")
    rewind("send", "--topic", "a", input="3\n4\n5\n")
    rewind("send", "--topic", "b", input="6\n")

    for arguments, expected in (
        ("log://>", "654321"),
        ("log://a", "543"),
        ("log://> --limit 2", "65"),
        ("log://> --from #2 --until #4", "432"),
        ("log://a --from #4 --count 1", "5"),
        ("log://> --from last:2", "65"),
        ("log://none", ""),
        ("log://none --from beginning", ""),
        ("audit?kind=stream", "21"),
    ):
        assert bodies(rewind("tail", *arguments.split(), "--reverse", "--json")) == list(expected), arguments
    assert rewind("tail", "log://>", "--reverse", "--count", "1").stdout.startswith("#6 2")
    assert rewind("tail", "log://>", "--reverse", "--from", "#70").exit_code == 1
    assert rewind("tail", "orders", "--reverse").exit_code == 2


@pytest.mark.parametrize(
    ("options", "shown"), [([], r" \u2603\xfc"), (["--json"], r'"body": "\u2603\u00fc"')]
)
def test_a_terminal_without_the_letters(gateway: RunningGateway, options: list[str], shown: str) -> None:
    """A character that the output's encoding lacks is printed as an escape, in JSON as a JSON escape."""
    with Client(gateway.url) as client:
        client.sender("topic://a").send_all([data("☃ü".encode())])
    arguments = ["tail", "log://a", "--from", "beginning", "--count", "1", *options, "--url", gateway.url]
    result = CliRunner(charset="ascii").invoke(main, arguments)
    assert result.exit_code == 0, result.output
    assert shown in result.stdout


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_an_output_that_is_full(gateway: RunningGateway) -> None:
    """If output cannot be written, the command ends with a sentence and status 1."""
    with Client(gateway.url) as client:
        client.sender("topic://a").send_all([data("x")])
    command = [*PROGRAM, "tail", "log://a", "--from", "beginning", "--url", gateway.url]
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=30, check=False
        )
    assert (result.returncode, result.stderr) == (
        1,
        "rewind: the output could not be written: No space left on device\n",
    )


def test_what_cannot_be_read_is_shown_all_the_same(rewind: Rewind, gateway: RunningGateway) -> None:
    """A message that is malformed after its first section is shown as bytes; later ones are not affected."""
    malformed = data("a") + section(PROPERTIES, [])
    with Client(gateway.url) as client:
        client.sender("topic://a").send_all([malformed, data("b")])
    first, second = objects(rewind("tail", "log://a", "--from", "beginning", "--until", "now", "--json"))
    assert "properties may not come after data" in first["malformed"]
    assert base64.b64decode(first["body"]["base64"]) == malformed
    assert (first["offset"], second["body"]) == (1, "b")


def test_standard_input_may_stay_open(gateway: RunningGateway) -> None:
    """If the gateway stops while input is awaited, the command ends with a sentence and status 1."""
    command = [*PROGRAM, "send", "orders", "--url", gateway.url]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write("1\n")
        process.stdin.flush()
        while not gateway.depth("orders"):
            assert process.poll() is None
        gateway.stop()
        said = process.stderr.read()
        assert process.wait(20) == 1, said
    assert "there is no connection, or it was lost" in said
    assert "of 1 accepted" in said
    assert "Fatal" not in said


def test_a_message_nobody_takes_fails_the_command(tmp_path: Path) -> None:
    """Messages without the outcome accepted are counted by reason, and the status is 1."""
    no_log = Vpn(replay_log=ReplayLog(enabled=False))
    with RunningGateway(settings_for(tmp_path / "data", no_log)) as running:
        result = CliRunner().invoke(main, ["send", "--topic", "nobody", "--url", running.url], input="1\n2\n")
    assert result.exit_code == 1
    assert "2 released: no queue and no log takes it" in result.stderr
    assert "0 of 2 accepted" in result.stderr


def test_any_message_can_be_shown() -> None:
    """
    Binary, values and sequences have a form in JSON and in a line. A timestamp beyond the calendar is a number, and NaN
    is text.
    """
    value = bytes.fromhex("005377") + b"\xa3\x03sym"
    sequence = bytes.fromhex("005376") + b"\x45"
    assert as_object(data(b"\xff\x00")) == {"bodyType": "data", "body": {"base64": "/wA="}}
    assert as_object(value) == {"bodyType": "value", "body": "sym"}
    assert as_object(sequence + sequence) == {"bodyType": "sequence", "body": [[], []]}
    assert as_line(value) == "#- sym"
    assert as_line(sequence) == "#- [[]]"
    assert as_line(data(b"\xff")) == '#- {"base64": "/w=="}'
    for odd, form in (
        (Timestamp(1 << 60), 1 << 60),
        (Timestamp(-(1 << 62)), -(1 << 62)),
        (float("nan"), "nan"),
    ):
        assert as_object(section(VALUE, odd))["body"] == form


def test_a_message_does_not_steer_the_terminal() -> None:
    """Control characters in any part of a message are escaped in its line; all other characters stay."""
    message = section(PROPERTIES, [None, None, None, "s\n#2"])
    message += section(APPLICATION_PROPERTIES, {"k\x1b[2J": "ü\r"}) + data("☃\x1b[31m\n".encode())
    assert as_line(message) == r"#- subject=s\n#2 k\x1b[2J=ü\r ☃\x1b[31m\n"
