"""``rewind archive`` as people run it: what it says, how it ends, and what it and a gateway agree on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from urllib.request import ProxyHandler, build_opener

import httpx
import pytest
from click.testing import CliRunner, Result

from gateway.cli import main
from gateway.vpn.upkeep.archiving import PROGRAM
from tests.spark_bridge.log_gateway import text
from tests.spark_bridge.places.test_log_file import table
from tests.spark_bridge.stored_log import StoredLog
from tests.store.archive.archives import ids
from tests.support.client import Client
from tests.support.running import PLAIN_HTTP
from tests.system.gateway_process import ROOT, GatewayProcess

pytestmark = pytest.mark.spark
PATIENCE_SECONDS = 30


def rewind(*arguments: str) -> Result:
    """The command, in this process."""
    return CliRunner().invoke(main, ["archive", *arguments])


@pytest.fixture
def log(tmp_path: Path) -> StoredLog:
    log = StoredLog(tmp_path / "data")
    log.publish(50)
    return log


def test_it_says_what_it_did(log: StoredLog, tmp_path: Path) -> None:
    """A sentence for a person; for a program a line for each segment and one for the whole."""
    to = str(tmp_path / "archive")
    done = rewind("--from", log.path, "--to", to, "--no-tell", "--rows", "20")
    assert (done.exit_code, done.output) == (
        0,
        f"archived 45 messages; {to} has the log up to message 50 in 3 files\n",
    )
    log.publish(10)
    lines = rewind("--from", log.path, "--to", to, "--no-tell", "--json").stdout.splitlines()
    segment, whole = map(json.loads, lines)
    assert (segment["first"], segment["last"], segment["rows"]) == (51, 60, 9)
    assert whole == {"archivedMsgId": 60, "rows": 9, "files": 4}
    compacted = rewind("compact", "--to", to, "--all")
    assert compacted.stdout == f"{to} has 1 file now; 4 files replaced\n"
    assert compacted.stderr.endswith("with 54 messages in place of 4 files\n")
    assert rewind("vacuum", "--to", to).stdout == f"0 files removed from {to}\n"
    stray = tmp_path / "archive" / "tmpx.tmp"
    stray.touch()
    os.utime(stray, (1, 1))
    assert rewind("vacuum", "--to", to, "--hours", "1").stdout == f"1 file removed from {to}\n"
    assert not stray.exists()


@pytest.mark.parametrize(
    ("arguments", "status", "sentence"),
    [
        (["--from", "{data}"], 2, "Missing option '--to'"),
        (["--from", "{data}", "--to", "{tmp}/a"], 1, "The archive is whole, but the gateway was not told"),
        (["--from", "{tmp}/none", "--to", "{tmp}/a"], 1, "path is the data folder of a gateway on this host"),
        (["--from", "amqp://a/b", "--to", "{tmp}/a"], 2, "for example amqp://127.0.0.1:5672"),
        (["--from", "{data}", "--to", "xyz://a"], 1, "is no place for an archive that pyarrow knows"),
        (["--from", "{data}", "--to", "{tmp}/data/default.db/x"], 1, "cannot be used"),
        (["compact", "--to", "{tmp}/data/default.db"], 1, "cannot be used"),
    ],
    ids=str,
)
def test_what_is_wrong_is_one_sentence(
    log: StoredLog, tmp_path: Path, arguments: list[str], status: int, sentence: str
) -> None:
    """Exit status 2 for wrong usage, 1 for what failed, and no stack trace."""
    given = [argument.format(data=log.path, tmp=tmp_path) for argument in arguments]
    done = rewind(*given, *([] if "compact" in given else ["--admin", "http://127.0.0.1:9"]))
    assert done.exit_code == status
    assert sentence in done.output


def test_without_pyarrow_it_says_what_to_install(
    log: StoredLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway is installed without it, and the other verbs do not miss it."""

    with monkeypatch.context() as patched:
        for name in ("gateway.cli.archiving", "store.archive.archiver", "store.archive.maintenance"):
            patched.delitem(sys.modules, name, raising=False)
        patched.setitem(sys.modules, "pyarrow", None)
        done = rewind("--from", log.path, "--to", str(tmp_path / "a"))
    assert done.exit_code == 1
    assert done.output == ("Error: an archive needs pyarrow: pip install 'rewind-gateway[archive]'\n")


def until(is_so: Callable[[], bool], what: str) -> None:
    """Wait for a condition of another process."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.02)  # another process: there is nothing to wait on but its answers


@pytest.mark.system
def test_a_full_log_is_freed_by_the_archiver_that_follows_it(tmp_path: Path) -> None:
    """A log of one megabyte that keeps what is not archived takes more than two: each message is archived over AMQP,
    only then trimmed, publishers that were refused for a moment go on, and SIGTERM ends the archiver with status 0."""
    config = "[vpn.default.replay_log]\nkeep_until_archived = true\nquota_mb = 1\n"
    gateway = GatewayProcess(tmp_path / "data", config)
    to = str(tmp_path / "archive")
    admin = gateway.ready["admin"]
    try:
        url = "amqp://{}:{}".format(*gateway.address)
        place = ["--from", url, "--to", to, "--admin", admin, "--follow", "--age", "0"]
        process = subprocess.Popen([sys.executable, "-m", "gateway", "archive", *place], cwd=ROOT)
        try:
            until((tmp_path / "archive" / "_delta_log").is_dir, "the archiver has begun")
            with Client(url) as client:
                sender = client.sender("topic://a")
                left = 250
                while left:
                    delivery = sender.send(text(b"%d " % left + b"x" * 10_000, "a"))
                    left -= client_took(sender.outcome(delivery))
                    delivery.settle()

            def log() -> dict[str, int]:
                answer = build_opener(ProxyHandler({})).open(
                    f"{admin}/SEMP/v2/monitor/msgVpns/default/replayLogs/default"
                )
                with answer:
                    found: dict[str, int] = json.load(answer)["data"]
                    return found

            until(lambda: log()["archivedMsgId"] == 250, "all is archived")
            assert log()["firstMsgId"] > 100
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_SECONDS) == 0
        found = table("offset bigint, body binary", url=url, archive=to)
        assert found.column("offset").to_pylist() == list(range(1, 251))
        assert [int(row.split()[0]) for row in found.column("body").to_pylist()] == list(range(250, 0, -1))
    finally:
        gateway.kill()


@pytest.mark.system
def test_a_gateway_archives_its_log_itself(tmp_path: Path) -> None:
    """
    From its start on, and what it had before; a killed archiver is begun anew, a gateway that stops ends its own, and
    so does one that is killed. What is archived may be trimmed, and is read from there.
    """
    to = tmp_path / "archive"
    config = f'[vpn.default.archive]\nto = "{to}"\nage_seconds = 1\n'

    def publish(gateway: GatewayProcess, count: int) -> None:
        with Client("{}:{}".format(*gateway.address)) as client:
            client.sender("topic://a").send_all([text(b"x", "a")] * count)

    def archivers() -> list[int]:
        """Processes that archive the log of this test."""
        found = subprocess.run(
            ["pgrep", "-f", f"{PROGRAM} {to}"], capture_output=True, text=True, check=False
        )
        return [int(line) for line in found.stdout.split()]

    def log(gateway: GatewayProcess) -> dict[str, int]:
        path = "/SEMP/v2/monitor/msgVpns/default/replayLogs/default"
        found: dict[str, int] = httpx.get(gateway.ready["admin"] + path, **PLAIN_HTTP).json()["data"]
        return found

    gateway = GatewayProcess(tmp_path / "data")
    publish(gateway, 10)
    assert gateway.stop() == 0
    gateway = GatewayProcess(tmp_path / "data", config)
    try:
        until(lambda: log(gateway)["archivedMsgId"] == 10, "what was there is archived")
        (first,) = archivers()
        os.kill(first, signal.SIGKILL)
        publish(gateway, 5)
        until(lambda: archivers() not in ([], [first]), "another one has begun")
        until(lambda: log(gateway)["archiveLastMsgId"] == 15, "it goes on")
        assert ids(archive=str(to)) == list(range(1, 16))
    finally:
        gateway.kill()
    until(lambda: archivers() == [], "it ends with a gateway that is killed")
    gateway = GatewayProcess(tmp_path / "data", config)
    until(archivers, "one has begun")
    assert gateway.stop() == 0
    until(lambda: archivers() == [], "it ends with a gateway that stops")


def client_took(outcome: str | None) -> int:
    """Messages that the gateway took: a full log rejects, and the publisher tries again."""
    assert outcome in {"ACCEPTED", "REJECTED"}
    return int(outcome == "ACCEPTED")
