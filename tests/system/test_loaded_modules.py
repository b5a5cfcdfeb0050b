"""What a gateway has loaded: what it uses, whatever else is installed beside it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.peer import Peer
from tests.system.gateway_process import ROOT, STOP_SECONDS

SERVE = """
import atexit, json, sys

def show():
    print(json.dumps([name for name, module in sys.modules.items() if module is not None]))

atexit.register(show)
from gateway.cli import main
main()
"""
"""`rewind serve`, which says at its end what is loaded."""

VERBS = """
import json, sys
from importlib import import_module

from gateway.cli.command import CLIENTS

for place in CLIENTS.values():
    import_module(place.partition(":")[0])
print(json.dumps(list(sys.modules)))
"""
"""Every verb that is a client of a gateway, loaded; and what is loaded then."""

INSTALLED = ("numpy", "pandas", "pyarrow", "pyspark", "rich")
"""What comes with Spark or with tools of the tests, and a library of ours would import if it could."""

ADMINISTRATION = {"fastapi", "prometheus_client", "starlette", "uvicorn"}
MIGRATIONS = {"pluggy", "sqlite_utils"}
PASSWORDS = {"asn1crypto", "scramp"}
CONFIGURATION = {"gateway.config", "pydantic"}
COMMANDS = {"gateway.cli.api", "gateway.cli.send", "gateway.cli.tail", "proton.reactor"}


class Run:
    """A gateway that ran: where it was while it did, and what it had loaded at its end."""

    def __init__(self, ready: dict[str, Any]) -> None:
        self.address = urlsplit(ready["amqp"][0])
        self.admin = str(ready["admin"])
        self.modules: set[str] = set()


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    """A folder in which all of ``INSTALLED`` can be imported, whether this environment has it or not."""
    folder = tmp_path / "installed"
    folder.mkdir()
    for name in INSTALLED:
        (folder / f"{name}.py").touch()
    return folder


@contextmanager
def serving(data: Path, beside: Path) -> Iterator[Run]:
    """A gateway, while the block runs; what it had loaded is known behind it."""
    options = ["--data", str(data), "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
    with subprocess.Popen(
        [sys.executable, "-c", SERVE, "serve", *options],
        env={**os.environ, "PYTHONPATH": str(beside)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            run = Run(json.loads(process.stdout.readline()))
            yield run
            process.terminate()
            run.modules = set(json.loads(process.stdout.readline()))
            assert process.wait(STOP_SECONDS) == 0
        finally:
            process.kill()


def publish_and_consume(run: Run) -> None:
    """A message in, out, and out of the log."""
    with Peer.opened((run.address.hostname or "", run.address.port or 0)) as peer:
        peer.attach_sender("queue://q")
        peer.publish(b"once")
        for address in ("queue://q", "log://>?replay-start=beginning"):
            peer.attach_receiver(address, credit=1)
            assert peer.receive()


def test_a_gateway_loads_what_it_uses(tmp_path: Path, beside: Path) -> None:
    """
    Nothing for administrators before there is one, nor for passwords where there are none, nor other verbs' clients;
    sqlite-utils only to make or to change tables; and what is merely installed beside it never.
    """
    with serving(tmp_path / "data", beside) as first:
        publish_and_consume(first)
    assert {"apsw", "gateway.amqp.links.publisher"} | MIGRATIONS <= first.modules
    assert first.modules & {*INSTALLED, *ADMINISTRATION, *PASSWORDS, *COMMANDS} == set()
    with serving(tmp_path / "data", beside) as second:
        publish_and_consume(second)
        with urllib.request.urlopen(f"{second.admin}/metrics") as scraped:
            assert scraped.status == 200
    assert second.modules >= ADMINISTRATION
    assert second.modules & {*INSTALLED, *MIGRATIONS, *PASSWORDS, *COMMANDS} == set()


def test_a_client_waits_for_no_configuration_to_load() -> None:
    """What checks settings takes longer to load than the rest of a verb, and no client has settings to check."""
    loaded = subprocess.run(
        [sys.executable, "-c", VERBS], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    assert {"click", "gateway.cli.api"} <= set(json.loads(loaded))
    assert CONFIGURATION.isdisjoint(json.loads(loaded))
