"""An administrator who purges a queue over HTTP."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from urllib.request import Request, urlopen

SECONDS = 300
"""How long the gateway may take."""


@dataclass(frozen=True, slots=True)
class Purged:
    """What a purge came to."""

    count: int
    milliseconds: float
    """From the request to the answer, which comes when it is durable."""


def wake(admin: str) -> None:
    """Have the gateway load what answers administrators: it does so with the first request, which is not measured."""
    with urlopen(f"{admin}/readyz", timeout=SECONDS) as answer:
        answer.read()


def purge(admin: str, queue: str) -> Purged:
    """Drop what lies on a queue."""
    url = f"{admin}/SEMP/v2/action/msgVpns/default/queues/{queue}/deleteMsgs"
    request = Request(url, b"{}", {"Content-Type": "application/json"}, method="PUT")
    started = time.perf_counter()
    with urlopen(request, timeout=SECONDS) as answer:
        count = json.load(answer)["data"]["deletedMsgCount"]
    return Purged(count, (time.perf_counter() - started) * 1000)
