"""The gateway dies in mid-read: the read fails in a sentence, or goes on whole once it is back."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from amqp_ext.codec import Described, encode
from spark_bridge import logs
from spark_bridge.errors import ConnectionFailed
from spark_bridge.links import Sender
from spark_bridge.options import parse
from spark_bridge.wire import Wire

pytestmark = [pytest.mark.spark, pytest.mark.system]
COUNT = 20_000  # of 1 KiB: more than sockets and credit hold
COLUMNS = (("offset", "offset"),)


def start(folder: Path, listen: str) -> tuple[subprocess.Popen[bytes], str]:
    """A gateway that listens there, and its url."""
    command = [sys.executable, "-m", "gateway", "serve", "--data", str(folder / "data"), "--listen", listen]
    command += ["--admin", "127.0.0.1:0"]
    root = Path(__file__).parents[2]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=root)
    assert process.stdout is not None
    return process, json.loads(process.stdout.readline())["amqp"][0]


def stop(process: subprocess.Popen[bytes]) -> None:
    """kill -9, and wait for it."""
    assert process.stdout is not None
    process.kill()
    process.wait()
    process.stdout.close()


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A gateway with 20,000 messages of 1 KiB in its log."""
    process, url = start(tmp_path, "127.0.0.1:0")
    try:
        message = encode(Described(0x73, [None, None, "topic://t"])) + encode(Described(0x75, b"x" * 1024))
        with Wire(parse({"url": url}).broker) as wire:
            Sender(wire, None).send(message for _ in range(COUNT))
        yield process, url
    finally:
        stop(process)


@pytest.mark.parametrize("comes_back", [True, False])
def test_a_gateway_killed_in_mid_read_never_makes_a_short_read(
    gateway: tuple[subprocess.Popen[bytes], str], tmp_path: Path, comes_back: bool
) -> None:
    """Back on the same file, every row comes once; gone, the read ends in an error that names the broker."""
    process, url = gateway
    options = parse({"url": url})
    batches = logs.read(options, COLUMNS, 0, logs.plan(options, 0))
    found = next(batches).column(0).to_pylist()
    stop(process)
    if not comes_back:
        with pytest.raises(ConnectionFailed, match="cannot be reached"):
            list(batches)
        return
    again, _ = start(tmp_path, url.removeprefix("amqp://"))
    try:
        found += [offset for batch in batches for offset in batch.column(0).to_pylist()]
    finally:
        stop(again)
    assert found == list(range(1, COUNT + 1))
