"""
The options of an address that ask for a replay: ``orders?replay-start=beginning&until=now``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from amqp_ext.replay_start.modifiers import MODIFIERS, with_modifiers
from amqp_ext.replay_start.text import NUMBER, parse_text
from amqp_ext.replay_start.value import OPTION, ReplayStart

_OPTIONS: Final = {"name": "replay-name"}
"""Options by the modifiers they stand for, where they are called otherwise."""

_DECIMAL: Final = re.compile(r"[0-9]{1,19}(\.[0-9]{1,19})?")


def from_options(options: Mapping[str, str]) -> ReplayStart | None:
    """
    Read the options of an address that ask for a replay; None when there are none of them.

    They are ``replay-start``, ``until``, ``missing``, ``generation``, ``speed``, ``rate`` and ``replay-name``;
    others are left to their readers.

    Raises:
        ReplayStartError: One has a bad value, or there is no start for them.
    """
    modifiers = {
        name: options[option] for name in MODIFIERS if (option := _OPTIONS.get(name, name)) in options
    }
    text = options.get("replay-start")
    if text is None and not modifiers:
        return None
    start = None if text is None else parse_text(text)
    return with_modifiers(start, {name: _number_of(name, value) for name, value in modifiers.items()}, OPTION)


def _number_of(name: str, text: str) -> Any:
    """The number that an option's text writes, where the modifier is a number; other texts stay texts."""
    if name == "generation" and NUMBER.fullmatch(text):
        return int(text)
    if name in ("speed", "rate") and _DECIMAL.fullmatch(text):
        return float(text)
    return text
