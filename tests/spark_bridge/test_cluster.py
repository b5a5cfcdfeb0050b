"""The bridge on a Spark cluster: a standalone master and two workers, each a process, on loopback."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark
import pytest

from tests.spark_bridge.log_gateway import LogGateway, text
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.system,
    pytest.mark.timeout(300),
    pytest.mark.skipif("REWIND_CLUSTER" not in os.environ, reason="takes a minute: ./run cluster"),
]
ROOT = Path(__file__).parents[2]
BIN = Path(pyspark.__file__).parent / "bin"
COUNT = 20_000
START_SECONDS = 60


@dataclass(frozen=True)
class Cluster:
    """The master's url, the wheel for drivers and executors, and a folder for their files."""

    master: str
    wheel: Path
    folder: Path

    def submit(self, program: Path, *arguments: str) -> str:
        """Run a program with ``spark-submit``; returns its stdout.

        The driver also has the wheel on its path: a stream runs in a Python process that ``--py-files`` does not reach.
        """
        command = [str(BIN / "spark-submit"), "--master", self.master, "--py-files", str(self.wheel)]
        command += ["--conf", "spark.executor.memory=512m", "--conf", "spark.ui.enabled=false"]
        command += [str(program), *arguments]
        done = subprocess.run(
            command,
            env=environment() | {"PYTHONPATH": str(self.wheel)},
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-4_000:] + done.stderr[-2_000:]
        return done.stdout


def environment() -> dict[str, str]:
    """The environment without this checkout, so that the bridge can come from the wheel only."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return kept | {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}


@contextmanager
def daemon(folder: Path, name: str, *arguments: str) -> Iterator[Callable[[str], str]]:
    """A process of the cluster for the duration of a block; yields a function that waits for a line of its log."""
    log = folder / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(BIN / "spark-class"), *arguments],
            stdout=output,
            stderr=output,
            env=environment(),
            cwd=folder,
            start_new_session=True,
        )

    def said(pattern: str) -> str:
        wait_until(lambda: re.search(pattern, log.read_text()), f"{name}: {pattern}", START_SECONDS)
        found = re.search(pattern, log.read_text())
        assert found is not None
        return found[1]

    try:
        yield said
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A master and two workers of one core each, and a wheel of this checkout."""
    folder = tmp_path_factory.mktemp("cluster")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    [wheel] = folder.glob("*.whl")
    wheel = wheel.rename(folder / "rewind.zip")  # Spark silently ignores a .whl
    here = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
    with ExitStack() as stack:
        master = stack.enter_context(
            daemon(folder, "master", "org.apache.spark.deploy.master.Master", *here)
        )(r"Starting Spark master at (spark://\S+)")
        for name in ("worker-1", "worker-2"):
            size = ["--cores", "1", "--memory", "600m", "--work-dir", str(folder / name), master]
            said = stack.enter_context(
                daemon(folder, name, "org.apache.spark.deploy.worker.Worker", *here, *size)
            )
            said(r"(Successfully registered with master)")
        yield Cluster(master, wheel, folder)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LogGateway]:
    """A gateway on the same host with 20,000 messages on topics cluster/0 to cluster/4."""
    with LogGateway(tmp_path_factory.mktemp("gateway")) as gateway:
        gateway.publish(text(b"%d" % n, f"cluster/{n % 5}") for n in range(COUNT))
        yield gateway


def test_executors_read_stream_and_write_with_the_wheel_alone(cluster: Cluster, gateway: LogGateway) -> None:
    """Both workers read, by url and by path; every row is read once, streamed once, and written back once."""
    program = Path(__file__).parent / "cluster_driver.py"
    out = cluster.submit(program, gateway.url, gateway.path, str(cluster.folder / "stream"))
    found = json.loads(out.splitlines()[-1])
    print(json.dumps(found, indent=1))
    assert {Path(folder).parts[-3] for folder, _, _ in found["read"]} == {"worker-1", "worker-2"}
    homes = {bridge for _, bridge, _ in found["read"]}
    assert all(cluster.wheel.name in home and not home.startswith(str(cluster.wheel)) for home in homes), (
        homes
    )
    assert sum(rows for _, _, rows in found["read"]) == COUNT
    for way in ("url", "path", "stream", "copies"):
        assert found[way] == [COUNT, COUNT], way


def test_an_example_runs_on_a_cluster_as_it_is(cluster: Cluster, gateway: LogGateway) -> None:
    """The example runs on the cluster without a change."""
    example = ROOT / "spark_bridge" / "examples" / "last_values.py"
    out = cluster.submit(example, f"url={gateway.url}", "subscribe=cluster/>")
    print(out)
    found = dict(re.findall(r"\|(cluster/\d)\s*\|.*\|(\d+)\s*\|$", out, re.MULTILINE))
    assert found == {f"cluster/{n}": str(COUNT - 5 + n) for n in range(5)}
