"""The fuzzer on real gateways: a sound one stands it, one with a planted mistake is found out."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from pathlib import Path

import pytest

from tests.fuzz.campaign import Campaign, Settings
from tests.fuzz.findings import narrowed, trouble
from tests.fuzz.made.kinds import NAMES
from tests.fuzz.made.requests import TOKEN
from tests.fuzz.planted_gateway import PLANTED
from tests.fuzz.playing import play
from tests.fuzz.progress import Progress
from tests.fuzz.target import Target

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(600)]

PATIENT = 60.0
"""Seconds that a bystander may wait beside other tests: how long is no matter of these."""

planted = partial(Target, "tests.fuzz.planted_gateway")


def settings(folder: Path, *only: str, most_inputs: int) -> Settings:
    Progress(folder / "state.json", seed=1).save()
    return Settings(folder, seconds=60, only=only, longest_wait_s=PATIENT, most_inputs=most_inputs, causes=1)


def test_a_planted_mistake_is_found_and_made_small(tmp_path: Path) -> None:
    """The finding names one input that brings it back; a gateway without the mistake does not mind that input."""
    campaign = Campaign(settings(tmp_path, "addresses", most_inputs=45), lambda line: None, planted)
    campaign.run()
    found = json.loads(campaign.files[0].read_text())
    name, [number] = found["cause"]
    assert (name, found["seed"]) == ("addresses", 1)
    assert "connection_failed" in found["log"][0]
    assert found["replay"] == f"./run soak fuzz --seed 1 --replay addresses:{number}-{number}"
    sent = bytes.fromhex(found["sent"][str(number)])
    assert PLANTED.encode() in sent
    with Target() as sound:
        assert sound.kinds[name].input(1, number) == sent
        assert trouble(sound, sound.kinds[name], 1, [number]) is None
        assert sound.stop() is None


def test_every_kind_gets_through_to_the_gateway(tmp_path: Path) -> None:
    """Inputs of each kind, in turns, are handled and leave no finding."""
    campaign = Campaign(settings(tmp_path, most_inputs=3_000), lambda line: None)
    assert campaign.run() >= 3_000
    assert [file.read_text() for file in campaign.files] == []
    counts = Progress(tmp_path / "state.json").counts
    assert {kind for kind in NAMES if not counts.get(kind)} == set()


def test_a_stream_that_never_ends_holds_nothing_up() -> None:
    """Server-Sent Events go on until their client leaves; what came after them is left for another connection."""
    with Target() as target:
        kind = target.kinds["http"]
        headers = b" HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + TOKEN.encode()
        live = b"GET /SEMP/v2/monitor/msgVpns/default/replayLogs/default/live" + headers + b"\r\n\r\n"
        health = b"GET /healthz" + headers + b"\r\n\r\n"
        played = asyncio.run(play(kind, target.addresses[kind.where], [health, live, health]))
        assert (played.handled, played.wrong) == (3, None)
        assert b"text/event-stream" in played.received
        assert target.stop() is None


def test_halving_ends_at_the_input_that_fails() -> None:
    """One of many is found; where two are needed together, both halves are kept."""
    assert narrowed(range(100), lambda numbers: 77 in numbers) == [77]
    assert narrowed(range(8), lambda numbers: {1, 6} <= set(numbers)) == list(range(8))
