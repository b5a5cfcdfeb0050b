"""``./run interop [CLIENT...]``: try every foreign client against a gateway of its own, and show the matrix of results.

The exit status is 0 only if nothing failed. A client that cannot be installed or started is a failure.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path

from interop.client import Client, Failed
from interop.clients import CLIENTS, SHORT_LIVED_JAVA
from interop.event_hubs_scenarios import SCENARIOS as OF_EVENT_HUBS
from interop.gateway_process import GatewayProcess
from interop.matrix import Result, as_json, summary
from interop.page import page
from interop.rabbitmq_scenarios import SCENARIOS as OF_RABBITMQ
from interop.scenarios import SCENARIOS, Trial, title
from interop.transcript import Relay, Transcript

README = Path(__file__).with_name("README.md")
INSTALL_WITHIN = 900.0  # seconds, a slow network included
GATEWAY_LINES = 60
"""The last lines of a gateway's log that are shown where a trial failed."""

Scenario = Callable[[Trial], None]

OF_DIALECTS: Mapping[str, Sequence[Scenario]] = {"rabbitmq": OF_RABBITMQ, "event_hubs": OF_EVENT_HUBS}
"""The scenarios that only the clients of a dialect try."""

BEHAVIOURS = {
    dialect: [title(each) for each in scenarios]
    for dialect, scenarios in {"": SCENARIOS, **OF_DIALECTS}.items()
}
"""The names of the scenarios by dialect; under the empty text, those for all clients."""

NOT_RECORDED = {
    "consumer timeout": "it takes its time",
    "delayed delivery": "it takes its time",
    "redelivery delay": "it takes its time",
    "token renewed": "its tokens are others each time",
    "delayed retry": "it takes its time",
    "retry at a time": "it takes its time",
    "failover": "the gateway is restarted",
    "failover of publisher": "the gateway is restarted",
    "large message": "it is long",
    "exclusive queue recovered": "the gateway is restarted",
    "reply on declared queue": "its name is another each time",
    "request reply": "the address of the temporary queue is another each time",
    "replay after id": "the id is another each time",
    "replay from date": "the date is another each time",
    "reconnect resumes": "the gateway is restarted",
    "transaction lost": "its client is killed",
    "stream from timestamp": "the date is another each time",
    "large event": "it is long",
    "hub and partition": "the times are others each time",
    "empty partition": "the times are others each time",
    "checkpoint and resume": "the client reads about the hub first, and the time of that is another each time",
    "events from enqueued time": "the time is another each time",
    "events from enqueued time inclusive": "the time is another each time",
    "enqueued time in the future": "the time is another each time",
    "receiver over a restart": "the gateway is restarted",
    "message groups": "which consumer gets what depends on who asks first",
    "last value": "its queue is made over HTTP",
    "competing": "which consumer gets what depends on who asks first",
    "shared subscription": "which consumer gets what depends on who asks first",
    "shared durable subscription": "which consumer gets what depends on who asks first",
}
"""Behaviours that no transcript can hold, and why."""


def say(text: str) -> None:
    """Print progress on stderr; stdout is for the results."""
    print(text, file=sys.stderr, flush=True)


def install(client: Client) -> None:
    """Install a client at its pinned version, unless it is there. Raises Failed with the installer's last lines."""
    for program in client.needs:
        if shutil.which(program) is None:
            raise Failed(
                f"{program} is missing; ./run interop installs it when run by root, or says where it is from"
            )
    if not client.install:
        return
    with (client.folder / ".installing").open("w") as turn:
        # Tests in several processes ask for the same client: the others wait for the first.
        fcntl.flock(turn, fcntl.LOCK_EX)
        _install(client)


def _install(client: Client) -> None:
    state = sha256(b"".join((client.folder / name).read_bytes() for name in client.pinned)).hexdigest()
    done = client.folder / ".installed"
    if done.exists() and done.read_text() == state:
        return
    say(f"{client.name}: installing {client.library}")
    for command in client.install:
        made = subprocess.run(
            list(command),
            cwd=client.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=INSTALL_WITHIN,
            check=False,
            env={
                **os.environ,
                "MAVEN_OPTS": " ".join([*SHORT_LIVED_JAVA, *os.environ.get("MAVEN_OPTS", "").split()]),
            },
        )
        if made.returncode:
            words = " ".join(f"{made.stdout}\n{made.stderr}".split())[-600:]
            raise Failed(f"{' '.join(command)} ended with {made.returncode}: {words}")
    done.write_text(state)


def attempt(client: Client, scenario: Scenario, gateway: GatewayProcess) -> Result:
    """Try one scenario with one client. Where it fails, print what its programs and the gateway said on stderr."""
    behaviour = title(scenario)
    if why := client.without.get(behaviour):
        return Result(client.name, behaviour, "cannot", why)
    began = time.monotonic()
    status, note = "pass", ""
    with ExitStack() as programs:
        trial = Trial(client, CLIENTS[0], gateway, f"{scenario.__name__}-{client.name}", programs)
        try:
            scenario(trial)
            note = client.remarks.get(behaviour) or trial.remark
        except (Failed, RuntimeError, OSError) as error:
            status, note = "fail", str(error)
            accounts = [run.account() for run in trial.runs]
            say(
                "\n".join(
                    [f"{client.name}, {behaviour}: {note}", *accounts, gateway.last_lines(GATEWAY_LINES)]
                )
            )
    return Result(client.name, behaviour, status, note, round(time.monotonic() - began, 2), trial.seen)


def try_client(client: Client, scenarios: Sequence[Scenario]) -> list[Result]:
    """Try all scenarios with one client, on a gateway of its own."""
    try:
        install(client)
    except (Failed, OSError, subprocess.TimeoutExpired) as error:
        say(f"{client.name}: not installed: {error}")
        return [Result(client.name, title(each), "fail", f"not installed: {error}") for each in scenarios]
    say(f"{client.name}: {client.library}")
    results = []
    with GatewayProcess([f"{client.dialect}_mode"] if client.dialect else []) as gateway:
        for scenario in scenarios:
            result = attempt(client, scenario, gateway)
            results.append(result)
            say(
                f"  {result.status:<6} {result.behaviour:<32} {result.seconds:6.1f} s  {result.note}".rstrip()
            )
    return results


def record(client: Client, scenarios: Sequence[Scenario]) -> list[Result]:
    """Record the transcripts of a client's behaviours, each on a gateway of its own."""
    install(client)
    results = []
    for scenario in scenarios:
        behaviour = title(scenario)
        if behaviour in NOT_RECORDED or behaviour in client.without or client.is_websocket:
            continue
        switches = [f"{client.dialect}_mode"] if client.dialect else []
        with GatewayProcess(switches) as gateway, Relay(gateway.url) as relay:
            gateway.url = relay.url
            result = attempt(client, scenario, gateway)
        results.append(result)
        say(f"  {result.status:<6} {behaviour}: {len(relay.steps)} steps {result.note}".rstrip())
        if result.status == "pass":
            Transcript(client.name, client.library, behaviour, switches, relay.steps).save()
    return results


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the clients named, or all; 0 if nothing failed."""
    parser = argparse.ArgumentParser(
        prog="./run interop",
        description="Try other projects' AMQP clients against a gateway. A run of all writes interop/README.md.",
    )
    names = [client.name for client in CLIENTS]
    parser.add_argument(
        "clients", nargs="*", metavar="CLIENT", help=f"one of {', '.join(names)}; default: all"
    )
    parser.add_argument("--json", action="store_true", help="print the results as JSON, instead of a table")
    parser.add_argument(
        "-k", metavar="WORDS", default="", help="only behaviours whose names match this regular expression"
    )
    parser.add_argument(
        "--record", action="store_true", help="record what the clients send, for the tests to replay"
    )
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.clients if name not in names]:
        parser.error(f"there is no client {unknown[0]!r}; there are {', '.join(names)}")
    clients = [client for client in CLIENTS if not options.clients or client.name in options.clients]
    results = []
    for client in clients:
        scenarios = [*SCENARIOS, *OF_DIALECTS.get(client.dialect, ())]
        chosen = [each for each in scenarios if re.search(options.k, title(each))]
        results += record(client, chosen) if options.record else try_client(client, chosen)
    if not results:
        parser.error(f"there is no behaviour like {options.k!r}")
    if len(clients) == len(CLIENTS) and not options.k and not options.record:
        README.write_text(page(clients, results, BEHAVIOURS), encoding="utf-8")
    print(json.dumps(as_json(results), indent=2, ensure_ascii=False) if options.json else summary(results))
    return int(any(result.status == "fail" for result in results))


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(main())
