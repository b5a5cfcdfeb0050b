"""What can happen to a read or a write on its way: TLS, a log trimmed under it, a gateway that comes back."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
import trustme

from spark_bridge.options import parse
from spark_bridge.writer import LogWriter
from store.archive.errors import LogError
from tests.spark_bridge.log_gateway import LogGateway, text
from tests.spark_bridge.reading import plan, read
from tests.spark_bridge.spark_types import struct

pytestmark = [pytest.mark.spark, pytest.mark.system]
COUNT = 6_000
OFFSETS = (("offset", "offset"),)


def offsets(batches: Iterator[pa.RecordBatch]) -> list[int]:
    """All offsets of a read."""
    return [offset for batch in batches for offset in batch.column(0).to_pylist()]


def trim(gateway: LogGateway, first: int) -> None:
    """Make ``first`` the first id of the log, as a gateway would whose retention says so."""
    gateway.kill()
    connection = sqlite3.connect(Path(gateway.path) / "default.db")
    with connection:
        connection.execute("update log set first_id = ?", [first])
        connection.execute("delete from message where id < ?", [first])
    connection.close()
    gateway.start()


def test_amqps_is_read_with_the_authority_it_names(tmp_path: Path) -> None:
    """The option tlsCa makes a certificate trusted; without it the read is refused in a sentence."""
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    server = tmp_path / "server.pem"
    config = f'[[listener]]\nport = 0\n[listener.tls]\ncertificate = "{server}"\nkey = "{server}"\n'
    gateway = LogGateway(tmp_path, config)
    with gateway.of_config() as url:
        assert url.startswith("amqps://")
        given = {"url": url, "tlsCa": str(tmp_path / "ca.pem")}
        writer = LogWriter(given | {"topic": "t"}, struct("body binary"), overwrite=False)
        writer.write(iter([pa.RecordBatch.from_pydict({"body": [b"1", b"2"]})]))
        options = parse(given)
        ids = plan(options)
        assert offsets(read(options, OFFSETS, ids)) == [1, 2]
        with pytest.raises(LogError, match="shows a certificate that is not trusted"):
            plan(parse({"url": url}))


@pytest.mark.parametrize(
    ("file", "reason"),
    [("none.pem", "No such file or directory"), ("notes.txt", "it holds no PEM certificate")],
)
def test_authorities_that_cannot_be_read_are_told(tmp_path: Path, file: str, reason: str) -> None:
    """A mistake in tlsCa does not look like a broker that is away."""
    (tmp_path / "notes.txt").write_text("no certificate")
    options = parse({"url": "amqps://127.0.0.1:1", "tlsCa": str(tmp_path / file)})
    with pytest.raises(LogError, match=f"tlsCa, .*{file}, cannot be read: {reason}"):
        plan(options)


def test_a_host_that_is_no_name_is_told() -> None:
    """Also one that Python cannot even look up."""
    with pytest.raises(LogError, match="cannot be reached"):
        plan(parse({"url": f"amqp://{'a' * 70}.example"}))


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[LogGateway]:
    """A gateway with 6,000 messages."""
    with LogGateway(tmp_path) as gateway:
        gateway.publish(text(b"x" * 1024, "t") for _ in range(COUNT))
        yield gateway


def test_what_was_trimmed_is_left_out_over_a_url_if_it_may_be(gateway: LogGateway) -> None:
    """With failOnDataLoss=false a read planned before the log was trimmed gives what is left; else it fails."""
    lenient, strict = (parse({"url": gateway.url, "failOnDataLoss": flag}) for flag in ("false", "true"))
    ids = plan(lenient)
    trim(gateway, 3_001)
    assert offsets(read(lenient, OFFSETS, ids)) == list(range(3_001, COUNT + 1))
    with pytest.raises(LogError, match="REWIND_DATA_LOSS"):
        offsets(read(strict, OFFSETS, ids))


def test_a_log_trimmed_under_the_read_is_read_on_behind_it(gateway: LogGateway) -> None:
    """What had come before the trimming stays, and nothing of what is left is missing or comes twice."""
    options = parse({"url": gateway.url, "failOnDataLoss": "false"})
    batches = read(options, OFFSETS, plan(options))
    found = next(batches).column(0).to_pylist()
    trim(gateway, 5_001)
    found += offsets(batches)
    assert found == sorted(set(found))
    assert found[:1_000] == list(range(1, 1_001))
    assert found[-1_000:] == list(range(5_001, COUNT + 1))


def test_a_writer_goes_on_when_the_gateway_is_back(gateway: LogGateway) -> None:
    """Killed between two batches of a write, the gateway has every row afterwards; message-ids tell repeated ones."""
    schema = struct("body binary, messageId string")
    writer = LogWriter({"url": gateway.url, "topic": "copy"}, schema, overwrite=False)

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(4):
            if number == 2:
                gateway.kill()
                gateway.start()
            ids = [f"{number}-{row}" for row in range(500)]
            yield pa.RecordBatch.from_pydict({"body": [b"x"] * 500, "messageId": ids})

    assert writer.write(batches()).accepted == 2_000
    options = parse({"url": gateway.url, "subscribe": "copy"})
    batches_back = read(options, (("messageId", "messageId"),), plan(options))
    found = [message_id for batch in batches_back for message_id in batch.column(0).to_pylist()]
    assert set(found) == {f"{number}-{row}" for number in range(4) for row in range(500)}
