"""
Transcripts: what a foreign client and the gateway said to each other, to be replayed without the client.

``./run interop --record`` puts a relay between the client's programs and the gateway and writes one file a behaviour.
What a client sent is kept as bytes. Of what the gateway answered only what the client depends on is kept, as short
texts: performatives, the links and addresses of an attach, outcomes, bare messages; not credit, grouping, times and
ids, which differ from run to run.

Causality makes a transcript replayable: the relay notes a client's bytes before the gateway gets them, and an answer
before the client does. So all that a step depends on is above it.
"""

from __future__ import annotations

import base64
import contextlib
import json
import socket
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from amqp_ext.codec import Described, decode
from amqp_ext.message.sections import bare_offset

FOLDER = Path(__file__).parent / "transcripts"

OPEN, BEGIN, ATTACH, FLOW, TRANSFER, DISPOSITION, DETACH, END, CLOSE = range(0x10, 0x19)
SASL_OUTCOME = 0x44
PROTOCOL_HEADER = 8
LONGEST_BODY = 64
"""Longest bare message that is kept as it is, in bytes; of a longer one its digest is kept."""


def _error(value: Any) -> str | None:
    return str(value.value[0]) if isinstance(value, Described) else None


def _address(terminus: Any) -> str | None:
    """The address of a source or target; None where there is no terminus, as in a refusal."""
    if not isinstance(terminus, Described):
        return None
    return str(terminus.value[0]) if terminus.value else ""


class Listener:
    """Reads the gateway's bytes on one connection, in any pieces, and extracts the answers that a client depends on."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._links: dict[tuple[int, int], str] = {}
        """By channel and handle."""
        self._partial: dict[tuple[int, int], bytes] = {}

    def feed(self, data: bytes) -> Iterator[str]:
        """The answers in what has come so far, in order."""
        buffer = self._buffer
        buffer += data
        while len(buffer) >= PROTOCOL_HEADER:
            if buffer.startswith(b"AMQP"):
                del buffer[:PROTOCOL_HEADER]
                continue
            size = int.from_bytes(buffer[:4], "big")
            if len(buffer) < size:
                return
            frame = bytes(buffer[:size])
            del buffer[:size]
            body = frame[4 * frame[4] :]
            if body:
                performative, end = decode(body)
                channel = int.from_bytes(frame[6:8], "big")
                yield from self._told(
                    channel, int(performative.descriptor), list(performative.value), body[end:]
                )

    def _told(self, channel: int, code: int, fields: list[Any], payload: bytes) -> Iterator[str]:
        def at(index: int, default: Any = None) -> Any:
            value = fields[index] if index < len(fields) else None
            return default if value is None else value

        if code == SASL_OUTCOME:
            yield f"sasl-outcome {int(at(0))}"
        elif code in (OPEN, BEGIN, END):
            yield {OPEN: "open", BEGIN: "begin", END: "end"}[code]
        elif code == CLOSE:
            yield f"close {_error(at(0))}"
        elif code == ATTACH:
            self._links[channel, int(at(1))] = name = f"{at(0)} {'receiver' if at(2) else 'sender'}"
            yield f"attach {name} source={_address(at(5))} target={_address(at(6))}"
        elif code == DETACH:
            yield f"detach {self._links[channel, int(at(0))]} closed={bool(at(1))} {_error(at(2))}"
        elif code == DISPOSITION:
            outcome = int(at(4).descriptor) if at(4) is not None else 0
            for delivery in range(int(at(1)), int(at(2, at(1))) + 1):
                yield f"disposition {'receiver' if at(0) else 'sender'} {delivery} {outcome:#04x}"
        elif code == TRANSFER:
            link = channel, int(at(0))
            content = self._partial.pop(link, b"") + payload
            if at(5, False):
                self._partial[link] = content
                return
            bare = content[bare_offset(content) :]
            told = bare.hex() if len(bare) <= LONGEST_BODY else sha256(bare).hexdigest()
            yield f"transfer {self._links[link]} {told}"


@dataclass(frozen=True, slots=True)
class Step:
    """What one side of a connection sent. With neither ``sent`` nor ``answers``: the client closed its socket."""

    connection: int
    sent: str = ""
    """The client's bytes, in base64."""
    answers: Sequence[str] = ()

    @property
    def content(self) -> bytes:
        """The client's bytes."""
        return base64.b64decode(self.sent)


@dataclass(slots=True)
class Transcript:
    """One behaviour with one client."""

    client: str
    package: str
    behaviour: str
    switches: Sequence[str]
    """Switches of the listener that were on."""
    steps: list[Step] = field(default_factory=list)

    @property
    def path(self) -> Path:
        """The file that keeps it."""
        return FOLDER / self.client / f"{self.behaviour.replace(' ', '_')}.json"

    def save(self) -> None:
        """Write it, one step a line."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        head = {key: value for key, value in asdict(self).items() if key != "steps"}
        steps = [
            json.dumps({k: v for k, v in asdict(step).items() if v or k == "connection"})
            for step in self.steps
        ]
        text = json.dumps(head | {"steps": []}, ensure_ascii=False)
        self.path.write_text(text[:-2] + "\n" + ",\n".join(steps) + "\n]}\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Transcript:
        """Read what ``save`` wrote."""
        found = json.loads(path.read_text(encoding="utf-8"))
        return cls(**found | {"steps": [Step(**step) for step in found["steps"]]})


class Relay:
    """Relays between clients and a gateway, on a port of its own, and notes what passes. A context manager."""

    def __init__(self, url: str) -> None:
        self._target = (urlsplit(url).hostname or "", urlsplit(url).port or 0)
        self._server = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._sockets: list[socket.socket] = []
        self._count = 0
        self.steps: list[Step] = []
        self.url = f"amqp://127.0.0.1:{self._server.getsockname()[1]}"

    def __enter__(self) -> Relay:
        self._begin(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        for sock in (self._server, *self._sockets):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        for thread in self._threads:
            thread.join(5)

    def _begin(self, work: Any, *arguments: Any) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            gateway = socket.create_connection(self._target)
            self._sockets += [client, gateway]
            number, self._count = self._count, self._count + 1
            self._begin(self._from_client, number, client, gateway)
            self._begin(self._from_gateway, number, client, gateway)

    def _note(self, step: Step) -> None:
        with self._lock:
            self.steps.append(step)

    def _from_client(self, number: int, client: socket.socket, gateway: socket.socket) -> None:
        try:
            while data := client.recv(1 << 16):
                self._note(Step(number, sent=base64.b64encode(data).decode()))
                gateway.sendall(data)
        except OSError:
            pass
        self._note(Step(number))
        _shut(gateway)

    def _from_gateway(self, number: int, client: socket.socket, gateway: socket.socket) -> None:
        listener = Listener()
        try:
            while data := gateway.recv(1 << 16):
                if answers := list(listener.feed(data)):
                    self._note(Step(number, answers=answers))
                client.sendall(data)
        except OSError:
            pass
        _shut(client)


def _shut(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_WR)
