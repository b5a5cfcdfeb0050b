"""A foreign client: a small program with the command line that all of them share, run as a process of its own.

    PROGRAM VERB --url URL --address ADDRESS [OPTION...]

=================  ==================================================================================================
verb               what the program does
=================  ==================================================================================================
``send``           ``--count`` messages with a body (``--body``, or ``--size`` characters), property ``n`` and a
                   ``colour``: ``grün`` where ``n`` is even, ``red`` where it is odd. ``--groups``: in so many groups,
                   in turns; ``--delay``: each to be delivered after so many ms
``receive``        until there are ``--count`` messages, or none comes for ``--timeout`` seconds. ``--selector``;
                   ``--subscription NAME``, ``--durable``, ``--shared``; ``--outcome
                   accept|release|modify|reject|none``, and RabbitMQ's ``later`` (in ``--delay`` ms);
                   ``--acknowledge auto|client|dups-ok`` (each immediately, all at the end, lazily)
``browse``         the same, but the messages stay on the queue
``replay``         ``receive`` with a replay start in a filter of its own: ``--start``, and ``--until``
``request``        ``--count`` requests, each answered on a temporary queue
``reply``          the other side: answers to the ``reply-to`` of each request
``move``           ``--count`` messages from the address to the queue ``--to`` in a transaction; prints ``moved``, then
                   ends the transaction as ``--end commit|rollback|never`` says
``unsubscribe``    deletes the durable subscription ``--subscription``
=================  ==================================================================================================

``--container ID`` names the client, ``--reconnect`` has the library reconnect after a lost connection. Each line of
output is a JSON object with an ``event``: ``attached``, ``sent`` (``n``, ``outcome``), ``message`` (``body``, ``n``,
``redelivered``, ``delivery_count``, ``replay_id``, ``replay_end``; null where the library does not show it), ``error``
(``kind``, ``condition``, ``info``, ``text``: what a user of the library sees), and ``end`` (``reason`` count, timeout,
detached or marker). The exit status is 0 unless there was an ``error``.
"""

from __future__ import annotations

import json
import queue
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PATIENCE = 60.0
"""Seconds to wait for a program's next line, or its end; a Java one on a busy machine takes a few to start."""

MOST_LINES = 200
"""Lines of a program that are shown after a failure: the first and the last ones."""
LONGEST_LINE = 500
"""Characters of such a line."""

Line = dict[str, Any]


class Failed(Exception):
    """A client did not do what a scenario asks; its text is a sentence for the matrix."""


@dataclass(frozen=True, slots=True)
class Client:
    """One client program, and what has to happen before it runs."""

    name: str
    library: str
    """Library and pinned version, for people."""
    language: str
    command: Sequence[str]
    install: Sequence[Sequence[str]] = ()
    """Commands that install it; run in ``folder``, once for each state of ``pinned``."""
    folder: Path = Path()
    pinned: Sequence[str] = ()
    """Files in ``folder`` that say what is installed and built."""
    needs: Sequence[str] = ()
    """Programs that have to be there: the script ``run`` installs them."""
    dialect: str = ""
    """The dialect of a vendor's client that needs more than AMQP 1.0: it is tried on a listener with that dialect's
    switch on, also with that dialect's scenarios."""
    is_websocket: bool = False
    """Whether it speaks AMQP over WebSocket."""
    own_filter: bool = True
    """Whether its API lets a user put a custom filter on a source."""
    remarks: Mapping[str, str] = field(default_factory=dict)
    """By behaviour: what is worth knowing about it with this client."""
    without: Mapping[str, str] = field(default_factory=dict)
    """By behaviour: why this client's API has no way to ask for it."""


class Run:
    """A client program that runs. It is a context manager, which ends the program."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = list(command)
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.lines: list[Line] = []
        self._queue: queue.Queue[str | None] = queue.Queue()
        self._said: list[str] = []
        self._threads = [
            threading.Thread(target=self._read_lines, daemon=True),
            threading.Thread(target=self._read_rest, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """End the program immediately, as a crash would. A second call does nothing."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for thread in self._threads:
            thread.join()
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()

    def until(self, event: str, count: int = 1) -> list[Line]:
        """Wait for ``count`` lines of an event; return all so far. Raises Failed if the program ends before."""
        self._read_until(lambda: len(self.of(event)) >= count, f"its {count} lines {event!r}")
        return self.of(event)

    def until_different(self, count: int) -> list[str]:
        """Wait for ``count`` different bodies; return all so far. Raises Failed if the program ends before."""
        self._read_until(lambda: len(set(self.bodies)) >= count, f"its {count} different messages")
        return self.bodies

    def finish(self) -> Run:
        """Wait for the end of the program."""
        deadline = time.monotonic() + PATIENCE
        while self._next(deadline):
            pass
        self._process.wait()
        return self

    def ok(self) -> Run:
        """Wait for the end. Raises Failed unless the program succeeded."""
        self.finish()
        if self._process.returncode or not self.of("end"):
            raise Failed(f"exit status {self._process.returncode}: {self._last_text()}")
        return self

    def error(self) -> Line:
        """Wait for the end, and return the error that the program has shown. Raises Failed without one."""
        self.finish()
        if not self.of("error"):
            raise Failed(f"was not refused; it ended with {self._last_text()}")
        return self.of("error")[0]

    def of(self, event: str) -> list[Line]:
        """Lines of this event so far."""
        return [line for line in self.lines if line.get("event") == event]

    @property
    def bodies(self) -> list[str]:
        """Bodies of the messages so far, in order."""
        return [line["body"] for line in self.of("message")]

    @property
    def reason(self) -> str:
        """Why a receiving program ended."""
        return str(self.of("end")[0]["reason"])

    def _read_until(self, holds: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not holds():
            if not self._next(deadline):
                raise Failed(f"ended before {what}: {self._last_text()}")

    def _next(self, deadline: float) -> bool:
        """Read one more line; return whether there was one."""
        try:
            text = self._queue.get(timeout=max(0.01, deadline - time.monotonic()))
        except queue.Empty:
            self.kill()
            raise Failed(f"no more to be seen of it within {PATIENCE:.0f} s: {self._last_text()}") from None
        if text is None:
            return False
        try:
            line = json.loads(text)
        except ValueError:
            line = {"event": "text", "text": text}
        self.lines.append(line)
        return True

    def _read_lines(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.strip():
                self._queue.put(line)
        self._queue.put(None)

    def _read_rest(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if line.strip():
                self._said.append(line.rstrip())
                del self._said[:-20]

    def account(self) -> str:
        """All that is known of the program, to find out what went wrong: command, lines, exit status, end of stderr."""
        lines = [json.dumps(line, ensure_ascii=False)[:LONGEST_LINE] for line in self.lines]
        if len(lines) > MOST_LINES:
            half, left_out = MOST_LINES // 2, len(lines) - MOST_LINES
            lines = [*lines[:half], f"… {left_out} more lines …", *lines[-half:]]
        status = self._process.poll()
        if status is not None:
            self._threads[-1].join(1.0)  # stderr is read to its end, unless a child of the program has it
        end = "it was still running" if status is None else f"exit status {status}"
        return "\n  ".join([" ".join(self._command), *lines, end, *self._said])

    def _last_text(self) -> str:
        errors = [line.get("text") or "" for line in self.of("error")]
        last = json.dumps(self.lines[-1], ensure_ascii=False) if self.lines else "nothing"
        return (errors or [" ".join(self._said[-6:])] if errors or self._said else [last])[-1][:600]
