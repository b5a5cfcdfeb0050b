"""Values and keys as TOML 1.0 writes them, and the dotted path of a setting."""

import json
import re
from collections.abc import Iterable
from pathlib import Path


def literal(value: object) -> str:
    """One value of a setting (bool, int, float, str, Path or a tuple of them) on one line."""
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            # Without an exponent a whole number stays a number with a point, as it was read.
            return repr(value)
        case str() | Path():
            # JSON's escapes are TOML's, but TOML wants DEL escaped too.
            return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
        case tuple():
            return "[" + ", ".join(literal(item) for item in value) + "]"
        case _:
            raise TypeError(f"{value!r} has no place in a configuration")


def key(name: str) -> str:
    """``name`` as a key: bare if it can be, else quoted."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else literal(name)


def dotted(steps: Iterable[str | int]) -> str:
    """The path of a setting, such as ``listener[0].port`` or ``vpn.default.queue."a/b".quota_mb``."""
    path = ""
    for step in steps:
        path += f"[{step}]" if isinstance(step, int) else f".{key(step)}"
    return path.removeprefix(".")
