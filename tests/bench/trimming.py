"""An administrator who trims the whole log over HTTP, on a thread of its own."""

from __future__ import annotations

import json
import threading
import time
from types import TracebackType
from typing import Any
from urllib.request import Request, urlopen

SECONDS = 300
"""How long the gateway may take."""


class Trimming:
    """From the beginning of a ``with`` block; its end waits for the answer, and raises what went wrong."""

    def __init__(self, admin: str) -> None:
        self._root = f"{admin}/SEMP/v2"
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="trimming", daemon=True)
        self.rate = 0.0
        """Ids trimmed in a second, once it is done."""

    def __enter__(self) -> Trimming:
        self._first = self._log("GET", "monitor", "")["firstMsgId"]
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.join()
        if self._error is not None and kind is None:
            raise self._error

    @property
    def is_done(self) -> bool:
        """Whether the gateway has answered."""
        return not self._thread.is_alive()

    def _run(self) -> None:
        started = time.perf_counter()
        try:
            first = self._log("PUT", "action", "/trimLoggedMsgs", {"before": "live"})["firstMsgId"]
        except Exception as error:
            self._error = error
        else:
            self.rate = (first - self._first) / (time.perf_counter() - started)

    def _log(self, method: str, tree: str, path: str, body: Any = None) -> dict[str, Any]:
        url = f"{self._root}/{tree}/msgVpns/default/replayLogs/default{path}"
        request = Request(
            url,
            json.dumps(body).encode() if body is not None else None,
            {"Content-Type": "application/json"},
            method=method,
        )
        with urlopen(request, timeout=SECONDS) as answer:
            found: dict[str, Any] = json.load(answer)["data"]
        return found
