"""Fixtures of the bridge's tests: a test broker, and Spark."""

import os
import shutil
import socket
import threading
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from interop.clients import SHORT_LIVED_JAVA
from spark_bridge import register, set_worker_python
from tests.spark_bridge.log_peer import LogPeer


@pytest.fixture
def log_peer() -> Iterator[LogPeer]:
    """A running LogPeer with an empty log; a test fills it before it connects."""
    peer = LogPeer()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        peer.port = listener.getsockname()[1]
        thread = threading.Thread(target=peer.serve, args=(listener,), daemon=True)
        thread.start()
        yield peer
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(10)
    assert not thread.is_alive()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One Spark session for all tests: it takes seconds to start, and so does its first query."""
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("Spark needs a Java runtime, and there is none on the PATH")
    set_worker_python()
    folder = tmp_path_factory.mktemp("spark")
    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": " ".join(SHORT_LIVED_JAVA),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.master("local[2]").appName("rewind-tests")
    session = builder.config(map=settings).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    register(session)
    yield session
    session.stop()
