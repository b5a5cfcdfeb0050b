"""The fuzzer with real gateways, its input numbers, and the inputs that these stand for."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from amqp_ext.codec import UInt
from tests.fuzz.campaign import Campaign, Settings, narrowed, trouble
from tests.fuzz.driver import Progress, performatives, play
from tests.fuzz.made.kind import Answer, Kind, Listener
from tests.fuzz.made.kinds import NAMES, all_kinds
from tests.fuzz.made.requests import TOKEN
from tests.fuzz.planted_gateway import PLANTED
from tests.fuzz.target import Target
from tests.support.frames import ATTACH, DISPOSITION, frame

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(600)]

PATIENT = 60.0
"""Seconds that the bystander may wait: not what these tests are about, and other tests run at the same time."""

SEED = 12
"""With this seed the third address makes the planted gateway fail, so that there is little to halve."""

planted = partial(Target, "tests.fuzz.planted_gateway")


def settings(folder: Path, *only: str, most_inputs: int) -> Settings:
    Progress(folder / "state.json", seed=SEED).save()
    return Settings(folder, seconds=60, only=only, longest_wait_s=PATIENT, most_inputs=most_inputs, causes=1)


@pytest.fixture(scope="module")
def sound() -> Iterator[Target]:
    """A gateway without a planted error; it must stop without problems after these tests."""
    with Target() as target:
        yield target
        assert target.stop() is None


def test_a_planted_mistake_is_found_and_made_small(tmp_path: Path, sound: Target) -> None:
    """The finding names one input that brings it back; a gateway without the planted error handles that input well."""
    campaign = Campaign(settings(tmp_path, "addresses", most_inputs=8), lambda line: None, planted)
    campaign.run()
    found = json.loads(campaign.files[0].read_text())
    name, [number] = found["cause"]
    assert (name, found["seed"]) == ("addresses", SEED)
    assert "connection_failed" in found["log"][0]
    assert found["replay"] == f"./run soak fuzz --seed {SEED} --replay addresses:{number}-{number}"
    sent = bytes.fromhex(found["sent"][str(number)])
    assert PLANTED.encode() in sent
    assert sound.kinds[name].input(SEED, number) == sent
    assert trouble(sound, sound.kinds[name], SEED, [number]) is None


def test_every_kind_gets_through_to_the_gateway(tmp_path: Path) -> None:
    """Inputs of every kind are handled, and there is no finding."""
    campaign = Campaign(settings(tmp_path, most_inputs=1_500), lambda line: None)
    assert campaign.run() >= 1_500
    assert [file.read_text() for file in campaign.files] == []
    counts = Progress(tmp_path / "state.json").counts
    assert {kind for kind in NAMES if not counts.get(kind)} == set()


def test_a_stream_that_never_ends_holds_nothing_up(sound: Target) -> None:
    """An event stream goes on until its client leaves. The driver does not wait for answers to requests after it."""
    kind = sound.kinds["http"]
    headers = b" HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + TOKEN.encode()
    live = b"GET /SEMP/v2/monitor/msgVpns/default/replayLogs/default/live" + headers + b"\r\n\r\n"
    health = b"GET /healthz" + headers + b"\r\n\r\n"
    played = asyncio.run(play(kind, sound.addresses[kind.where], [health, live, health]))
    assert (played.handled, played.wrong) == (3, None)
    assert b"text/event-stream" in played.received


def test_what_is_sent_on_a_session_that_was_ended_is_not_waited_for(
    sound: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A target of a wrong type makes the gateway end the session. The driver waits for no answer to later inputs."""
    monkeypatch.setattr("tests.fuzz.driver.SILENT_SECONDS", 5.0)
    kind = sound.kinds["addresses"]
    good = kind.input(SEED, 0, 0)
    odd = frame(ATTACH, ["odd", UInt(1), True, None, None, None, 7])
    played = asyncio.run(play(kind, sound.addresses[kind.where], [good, odd, good]))
    assert (played.handled, played.wrong) == (2, None)


def test_what_its_sender_settles_is_not_waited_for(sound: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gateway owes no outcome for a delivery that its sender settles; it owes one for all others."""
    monkeypatch.setattr("tests.fuzz.driver.SILENT_SECONDS", 5.0)
    kind = sound.kinds["apart"]
    inputs = [kind.input(SEED, 100 + place, place) for place in range(10)]
    assert DISPOSITION in {code for code, _, _ in performatives(b"".join(inputs))}
    played = asyncio.run(play(kind, sound.addresses[kind.where], inputs))
    assert (played.handled, played.wrong) == (10, None)


def test_halving_ends_at_the_input_that_fails() -> None:
    """One input of many is found; if two are needed together, both halves are kept."""
    assert narrowed(range(100), lambda numbers: 77 in numbers) == [77]
    assert narrowed(range(8), lambda numbers: {1, 6} <= set(numbers)) == list(range(8))


def test_a_run_goes_on_where_the_last_one_stopped(tmp_path: Path) -> None:
    """Seed, counts and next number come from the file; no number is handed out twice."""
    first = Progress(tmp_path / "state.json", seed=7)
    first.finish("frames", first.take("frames", 10), 4)
    first.take("frames", 10)
    first.save()

    second = Progress(tmp_path / "state.json")

    assert (second.seed, second.counts, second.total) == (7, {"frames": 4}, 4)
    assert Progress(tmp_path / "state.json", is_fresh=True).total == 0
    assert second.take("frames", 10) == range(20, 30)
    assert second.under_way == [("frames", range(20, 30))]


ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = {
    "paths": {
        "/SEMP/v2/config/msgVpns/{vpn}/queues": {
            "post": {
                "requestBody": {
                    "content": {
                        "application/json": {"schema": {"properties": {"queueName": {}, "owner": {}}}}
                    }
                }
            },
            "get": {"parameters": [{"name": "count", "in": "query"}]},
        }
    }
}
KINDS = all_kinds(DOCUMENT)
SOME = range(300)
FEW = range(50)


def digests() -> list[str]:
    """A digest of some inputs of each kind."""
    made = (b"".join(kind.input(3, number, number) for number in FEW) for kind in KINDS.values())
    return [hashlib.sha256(inputs).hexdigest() for inputs in made]


def test_a_number_means_the_same_input_in_every_process() -> None:
    """An input depends neither on Python's string hashes, which differ between processes, nor on earlier inputs."""
    told = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.test_fuzz"],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert told == f"{digests()}\n"


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_inputs_of_one_connection_fit_into_what_it_may_send(kind: Kind) -> None:
    """
    Where inputs share a connection, no frame is too large for the gateway, which would end the connection of them all.
    """
    if kind.answer is Answer.END or kind.where is Listener.ADMINISTRATION:
        return
    for number in SOME:
        made, at = kind.input(3, number), 0
        while at < len(made):
            size = int.from_bytes(made[at : at + 4], "big")
            assert 8 <= size <= 65_536
            at += size
        assert at == len(made)


if __name__ == "__main__":
    print(digests())
