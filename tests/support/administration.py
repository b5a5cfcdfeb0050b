"""An HTTP client of a gateway's administration."""

from __future__ import annotations

from typing import Any, Self

import httpx

from tests.support.running import PLAIN_HTTP

SECONDS = 600
"""How long an answer may take: a trim of millions of messages is answered only when it is complete."""


class Administration:
    """Sends requests about the Message VPN ``default``, below ``/SEMP/v2``."""

    def __init__(self, url: str) -> None:
        self._http = httpx.Client(base_url=url, **PLAIN_HTTP | {"timeout": SECONDS})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def get(self, path: str) -> str:
        """Returns the answer to a GET of any path; the request must succeed."""
        return self._http.get(path).raise_for_status().text

    def ask(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        """Returns the answer to a request below ``/SEMP/v2/``; the request must succeed."""
        answer = self._http.request(method, f"/SEMP/v2/{path}", json=body)
        if answer.status_code != httpx.codes.OK:
            raise RuntimeError(f"{method} {path} was answered {answer.status_code}: {answer.text[:300]}")
        found: dict[str, Any] = answer.json()
        return found

    def monitor(self, path: str = "") -> Any:
        """Returns the monitor data of a part of the Message VPN."""
        return self.ask("GET", f"monitor/msgVpns/default/{path}")["data"]

    def act(self, path: str, body: object = None) -> Any:
        """Request an action on a part of the Message VPN; returns the data of the answer."""
        return self.ask("PUT", f"action/msgVpns/default/{path}", body or {}).get("data")
