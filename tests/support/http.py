"""What tests say to httpx when they ask a gateway of this machine."""

from __future__ import annotations

from typing import Any, Final

PLAIN_HTTP: Final[dict[str, Any]] = {"trust_env": False, "verify": False}
"""Over plain HTTP: no proxy, and without the authorities of the world, which take longer to load than most tests."""
