"""Recorded foreign clients: the gateway answers their bytes today as it did when they were recorded."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
import structlog

from gateway.config import Listener as ListenerSettings
from interop.transcript import FOLDER, Listener, Step, Transcript
from tests.support.running import RunningGateway, settings_for

WAIT_SECONDS = 15

PATHS = sorted(FOLDER.glob("*/*.json"))

UNSOLICITED = ("transfer", "attach", "detach", "begin", "end", "open", "close", "sasl-outcome")
"""Answers that must not come more often than in the recording."""


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    yield
    structlog.reset_defaults()


class Replayed:
    """One connection of a transcript: it sends the recorded bytes and waits for the recorded answers."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address, WAIT_SECONDS)
        # As clients do: otherwise small pieces wait for the acknowledgement of the first one, and come late.
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._listener = Listener()
        self._answers: list[str] = []
        """Answers that have arrived and were not expected yet."""

    def send(self, content: bytes) -> None:
        self.socket.sendall(content)

    def keep(self, answers: list[str]) -> None:
        """Wait for answers that are expected only later, and keep them."""
        self.expect(answers)
        self._answers += answers

    def expect(self, answers: list[str]) -> None:
        """Wait for answers in any order: answers on several links have no order among each other."""
        for answer in answers:
            while answer not in self._answers:
                data = self.socket.recv(1 << 16)
                assert data, f"the gateway closed instead of: {answer}; it had said {self._answers}"
                self._answers += self._listener.feed(data)
            self._answers.remove(answer)

    def finish(self) -> list[str]:
        """Close our side; returns the answers that are not in the recording."""
        try:
            self.socket.shutdown(socket.SHUT_WR)
            while data := self.socket.recv(1 << 16):
                self._answers += self._listener.feed(data)
        except OSError:
            pass  # the gateway closed first
        self.socket.close()
        return [answer for answer in self._answers if answer.startswith(UNSOLICITED)]


def is_detach(content: bytes) -> bool:
    """Whether the content is a single ``detach``."""
    return content[8:11] == b"\x00S\x16" and int.from_bytes(content[:4]) == len(content)


def under_way(steps: list[Step], index: int) -> list[str]:
    """
    The answers on a link between the client's detach in step ``index`` and the gateway's detach.

    The gateway sent them before it saw the detach. If the replay does not wait for them before it sends the detach, the
    race of the recording may end otherwise: a message that another connection publishes meanwhile goes to another link.
    """
    came: list[str] = []
    for step in steps[index + 1 :]:
        if step.connection != steps[index].connection:
            continue
        for answer in step.answers:
            if answer.startswith("detach "):
                link = answer.split(" ", 2)[1]
                return [transfer for transfer in came if transfer.startswith(f"transfer {link} ")]
            came.append(answer)
    return []


def have_all_read(gateway: RunningGateway) -> None:
    """
    Return when the gateway has read everything that was sent: no flow may race a message of another connection.

    The gateway's loop reads a socket's data in the turn in which it wakes up for it; the second call is in a later one.
    """
    for _ in range(2):
        gateway.call(lambda _: None)


def replay(transcript: Transcript, steps: list[Step], gateway: RunningGateway) -> None:
    host, port = gateway.address.split(":")
    address = (host, int(port))
    connections: dict[int, Replayed] = {}
    last_sender = 0
    with ExitStack() as sockets:
        for index, step in enumerate(steps):
            if step.connection not in connections:
                connections[step.connection] = Replayed(address)
                sockets.callback(connections[step.connection].socket.close)
            connection = connections[step.connection]
            if step.sent:
                if step.connection != last_sender:
                    have_all_read(gateway)
                    last_sender = step.connection
                if is_detach(step.content):
                    connection.keep(under_way(steps, index))
                connection.send(step.content)
            elif step.answers:
                connection.expect(list(step.answers))
            else:
                assert not connection.finish(), f"{transcript.client}: more than was recorded"


def test_there_are_transcripts() -> None:
    """The transcripts' folder is found."""
    assert len({path.parent.name for path in PATHS}) >= 3


@pytest.mark.parametrize("path", PATHS, ids=[f"{path.parent.name}-{path.stem}" for path in PATHS])
def test_a_client_gets_the_answers_that_it_got(path: Path, tmp_path: Path) -> None:
    """Attaches, refusals, messages and outcomes are those of the recording, on every connection."""
    transcript = Transcript.load(path)
    listener = replace(ListenerSettings(port=0), **dict.fromkeys(transcript.switches, True))
    with RunningGateway(settings_for(tmp_path / "data", listeners=(listener,))) as gateway:
        replay(transcript, transcript.steps, gateway)
