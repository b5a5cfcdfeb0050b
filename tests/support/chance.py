"""How often a randomized test runs: a few times in the suite, for hours in a soak."""

from __future__ import annotations

from typing import Final

from hypothesis import settings

IS_NIGHTLY: Final = settings.get_current_profile_name() == "nightly"
"""Whether the tests may take hours: ``HYPOTHESIS_PROFILE`` says so, which ``./run soak`` sets."""


def times(suite: int, nightly: int, dev: int | None = None) -> int:
    """The number of repetitions in the suite or nightly; in the profile ``dev`` it is ``dev``, by default ``suite``."""
    return {"nightly": nightly, "dev": dev or suite}.get(settings.get_current_profile_name(), suite)
