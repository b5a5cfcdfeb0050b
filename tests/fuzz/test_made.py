"""An input is a function of its kind, its seed and its number, in any process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.made.kind import Answer, Kind, Listener
from tests.fuzz.made.kinds import all_kinds

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

_DIGESTS = """
import hashlib
from tests.fuzz.test_made import KINDS, SOME
for kind in KINDS.values():
    made = b"".join(kind.input(3, number, number % 100) for number in SOME)
    print(kind.name, hashlib.sha256(made).hexdigest())
"""


def test_a_number_means_the_same_input_in_every_process() -> None:
    """Neither the hashes of texts, which change from process to process, nor what was made before has a say."""
    told = [
        subprocess.run(
            [sys.executable, "-c", _DIGESTS],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert told[0] == told[1]
    assert len(told[0].splitlines()) == len(KINDS)


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_another_number_or_seed_is_another_input(kind: Kind) -> None:
    """Of so many most are not alike, and another seed makes others."""
    made = {kind.input(3, number) for number in SOME}
    assert len(made) > len(SOME) / 3
    assert kind.input(3, 0) == kind.input(3, 0)
    assert [kind.input(3, number) for number in range(5)] != [kind.input(4, number) for number in range(5)]


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_inputs_of_one_connection_fit_into_what_it_may_send(kind: Kind) -> None:
    """No frame of those kinds that share a connection is larger than the gateway takes, or it would end the others'."""
    if kind.answer is Answer.END or kind.where is Listener.ADMINISTRATION:
        return
    for number in SOME:
        made, at = kind.input(3, number), 0
        while at < len(made):
            size = int.from_bytes(made[at : at + 4], "big")
            assert 8 <= size <= 65_536
            at += size
        assert at == len(made)
