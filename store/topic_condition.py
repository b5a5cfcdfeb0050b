"""
Topic patterns (Solace's) as an engine looks at topics: names, and texts with a wildcard that stands for anything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

MOST_LITERALS: Final = 1_000
MOST_WILDCARDS: Final = 32
"""Topic patterns that an engine looks at for each message; with more, it is quicker to read them all and let the
caller's index decide."""


def named_topics(
    patterns: Sequence[str], literal: Callable[[str], str], anything: str
) -> tuple[list[str], list[str]] | None:
    """
    Topics, and texts of which one matches every topic that a pattern with wildcards matches, and few others: the
    wildcard also takes ``/``, so the caller has to match again. Exceptions (``!``) are left to the caller.

    Args:
        literal: Gives what stands for just this text in one with wildcards.
        anything: What stands for any text.

    Returns:
        None where every topic has to be looked at, very many patterns among the reasons; so it has where both lists
        are empty.
    """
    literals: list[str] = []
    wildcards: list[str] = []

    def level_text(level: str) -> str:
        return literal(level[:-1]) + anything if level.endswith("*") else literal(level)

    for pattern in patterns:
        if pattern == ">":
            return None
        if pattern.startswith("!"):
            continue
        levels = pattern.split("/")
        if levels[-1] == ">":
            # What > takes may be empty: a/> matches the topic a/ with its empty last level.
            wildcards.append("/".join([*map(level_text, levels[:-1]), anything]))
        elif any(level.endswith("*") for level in levels):
            wildcards.append("/".join(map(level_text, levels)))
        else:
            literals.append(pattern)
    if len(literals) > MOST_LITERALS or len(wildcards) > MOST_WILDCARDS:
        return None
    return literals, wildcards
