"""The RabbitMQ that is installed on this machine: private nodes, with a quorum queue or a stream."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.bench.peers.broker import QUEUES, Broker, BrokerProcess, PeerFailed, Replay, Running
from tests.support.ports import free_port

SCRIPTS = (Path("/usr/lib/rabbitmq/bin"),)
"""Where packages keep the scripts; those in PATH are wrappers that switch to another user."""

NATIVE = 4
"""From this version on AMQP 1.0 is native; earlier versions have a plugin."""
COMMAND_SECONDS = 120

_DECLARE = (
    'rabbit_amqqueue:declare({{resource, <<"/">>, queue, <<"{name}">>}}, true, false, '
    '[{{<<"x-queue-type">>, longstr, <<"{kind}">>}}], none, <<"bench">>), ok.'
)


class RabbitMq(Broker):
    """One node without replication, or a cluster on this machine."""

    def __init__(self, kind: str, version: str = "0", nodes: int = 1) -> None:
        """``kind`` is ``quorum`` or ``stream``; ``fetch`` finds out the real version."""
        self.name = f"rabbitmq-{kind}" if nodes == 1 else f"rabbitmq-{kind}-{nodes}"
        self._kind = kind
        self._nodes = nodes
        # A stream keeps messages after they are read.
        self.is_consumed = kind == "quorum"
        # A quorum queue's Raft log is synced; a stream is written to the page cache.
        synced = "yes (Raft log)" if nodes == 1 else "yes, on most nodes (Raft log)"
        self.storage = synced if kind == "quorum" else "**no**"
        self._is_of(version)

    def _is_of(self, version: str) -> None:
        """Set what depends on the version: title, addresses, and whether a stream supports the offset filter."""
        kind = "quorum queue" if self._kind == "quorum" else "stream"
        self.title = f"RabbitMQ {version} {kind}" + (f", {self._nodes} nodes" if self._nodes > 1 else "")
        self._is_native = int(version.split(".", maxsplit=1)[0]) >= NATIVE
        if self._kind == "stream" and self._is_native:
            self.replay = Replay(self.queue("bench"), {"rabbitmq:stream-offset-spec": "first"})

    def queue(self, name: str) -> str:
        """The address of a queue."""
        return f"/queues/{name}" if self._is_native else f"/amq/queue/{name}"

    def fetch(self, folder: Path) -> None:
        """Check that it is installed."""
        _script("rabbitmq-server")
        with _port_mapper() as environment:
            self._is_of(_control(environment, "version").strip().splitlines()[-1])

    @contextmanager
    def started(self, folder: Path) -> Iterator[Running]:
        """Run nodes with their own port mapper."""
        with _port_mapper() as mapped, ExitStack() as stack:
            own = [self._node(folder / str(number), number) for number in range(1, self._nodes + 1)]
            environments = [mapped | environment for environment, _ in own]
            nodes = [
                stack.enter_context(BrokerProcess([_script("rabbitmq-server")], port, environment))
                for environment, (_, port) in zip(environments, own, strict=True)
            ]
            for node, environment in zip(nodes, environments, strict=True):
                # A link to a missing queue is refused, so wait for the node alone first.
                node.wait()
                _control(environment, "await_startup")
            first = environments[0]
            for environment in environments[1:]:
                _control(environment, "stop_app")
                _control(environment, "join_cluster", first["RABBITMQ_NODENAME"])
                _control(environment, "start_app")
                _control(environment, "await_startup")
            for name in QUEUES:
                _control(first, "eval", _DECLARE.format(name=name, kind=self._kind))
            nodes[0].wait(self.queue(QUEUES[-1]))
            yield Running(nodes[0].address, lambda: [pid for node in nodes for pid in node.pids()])

    def _node(self, folder: Path, number: int) -> tuple[dict[str, str], int]:
        """The environment of a node with its files in ``folder``, and its port."""
        port = free_port()
        (folder / "home").mkdir(parents=True)
        (folder / "home" / ".erlang.cookie").write_text("bench")
        (folder / "home" / ".erlang.cookie").chmod(0o400)
        (folder / "rabbitmq.conf").write_text(f"listeners.tcp.1 = 127.0.0.1:{port}\nlog.file.level = info\n")
        plugins = [] if self._is_native else ["rabbitmq_amqp1_0"]
        (folder / "plugins").write_text(f"[{','.join(plugins)}].\n")
        environment = {
            "HOME": str(folder / "home"),
            "RABBITMQ_NODENAME": f"bench{number}@localhost",
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_MNESIA_BASE": str(folder / "data"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
        }
        return environment, port


@contextmanager
def _port_mapper() -> Iterator[dict[str, str]]:
    """
    Runs Erlang's port mapper; yields the environment that leads to it. Without it, a node starts one that never ends.
    """
    port = free_port()
    with BrokerProcess(["epmd", "-port", str(port), "-address", "127.0.0.1"], port) as process:
        process.wait_for_port()
        yield {"ERL_EPMD_PORT": str(port)}


def _control(environment: Mapping[str, str], *arguments: str) -> str:
    """The output of RabbitMQ's command for administrators."""
    done = subprocess.run(
        [_script("rabbitmqctl"), *arguments],
        check=False,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS,
    )
    if done.returncode != 0:
        raise PeerFailed(f"rabbitmqctl {arguments[0]} failed: {done.stdout.strip()}{done.stderr.strip()}")
    return done.stdout


def _script(name: str) -> str:
    for folder in SCRIPTS:
        if (folder / name).exists():
            return str(folder / name)
    found = shutil.which(name)
    if found is None:
        raise PeerFailed("RabbitMQ is not installed")
    return found
