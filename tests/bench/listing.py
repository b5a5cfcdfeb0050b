"""An administrator who lists all queues over HTTP, page after page, again and again, on a thread of its own."""

from __future__ import annotations

import json
import threading
import time
from types import TracebackType
from urllib.request import urlopen

PAGE = 100


class Listing:
    """From the beginning of a ``with`` block to its end; an error ends the run at the end of the block."""

    def __init__(self, admin: str) -> None:
        self._url = f"{admin}/SEMP/v2/monitor/msgVpns/default/queues?count={PAGE}"
        self._is_wanted = True
        self._listed = 0
        self._started = time.perf_counter()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="listing", daemon=True)

    def __enter__(self) -> Listing:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_wanted = False
        self._thread.join()
        self.rate = self._listed / (time.perf_counter() - self._started)
        if self._error is not None and kind is None:
            raise self._error

    def _run(self) -> None:
        try:
            while self._is_wanted:
                self._listed += self._list_all()
        except Exception as error:
            self._error = error

    def _list_all(self) -> int:
        count, url = 0, self._url
        while url and self._is_wanted:
            with urlopen(url) as answer:
                page = json.load(answer)
            count += len(page["data"])
            url = (page["meta"].get("paging") or {}).get("nextPageUri", "")
        return count
