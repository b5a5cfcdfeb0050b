"""All kinds of input by their names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.fuzz.made.frames import STREAMS
from tests.fuzz.made.kind import Kind
from tests.fuzz.made.links import LINKS
from tests.fuzz.made.requests import requests
from tests.fuzz.made.transfers import TRANSFERS

NAMES = (*(kind.name for kind in (*LINKS, *TRANSFERS, *STREAMS)), "http")


def all_kinds(document: Mapping[str, Any]) -> dict[str, Kind]:
    """
    Every kind by its name.

    Args:
        document: The administration's description at ``/openapi.json``.
    """
    return {kind.name: kind for kind in (*LINKS, *TRANSFERS, *STREAMS, requests(document))}
