"""How often is tried what chance plays in: some times in the suite, for hours in a soak."""

from __future__ import annotations

from typing import Final

from hypothesis import settings

IS_NIGHTLY: Final = settings.get_current_profile_name() == "nightly"
"""Whether there are hours: ``HYPOTHESIS_PROFILE`` says so, which ``./run soak`` sets."""


def times(suite: int, nightly: int, dev: int | None = None) -> int:
    """So many in the suite and nightly; on a developer's machine as in the suite, unless that is said, too."""
    return {"nightly": nightly, "dev": dev or suite}.get(settings.get_current_profile_name(), suite)
