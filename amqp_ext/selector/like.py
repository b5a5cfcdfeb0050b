"""
LIKE patterns: ``_`` is any one character, ``%`` any number of them (Jakarta Messaging 3.1 section 3.8.1.1).

No regular expressions: a pattern comes from a stranger, and a backtracking matcher can be made to run for
hours. Invariant: a match takes time linear in the subject, whatever the pattern. Patterns without ``_`` are
searched piece by piece with str's own methods; the others run as a bit-parallel automaton, a few integer
operations a character.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

Matcher = Callable[[str], bool]


class _Wild(Enum):
    ONE = "_"
    MANY = "%"


def like_matcher(pattern: str, escape: str | None = None) -> Matcher:
    """
    A function that says whether a whole text matches the pattern.

    Args:
        escape: One character that takes the meaning of wildcard from the character after it.

    Raises:
        ValueError: Nothing follows the last escape, or ``escape`` is not one character.
    """
    if escape is not None and len(escape) != 1:
        raise ValueError(f"expected one character after ESCAPE, found '{escape}'")
    elements = _elements(pattern, escape)
    if _Wild.ONE in elements:
        return _automaton(elements)
    pieces = [""]
    for element in elements:
        if isinstance(element, str):
            pieces[-1] += element
        else:
            pieces.append("")
    return _search(pieces)


def _elements(pattern: str, escape: str | None) -> list[str | _Wild]:
    elements: list[str | _Wild] = []
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            following = next(characters, None)
            if following is None:
                raise ValueError(
                    f"expected a character after the escape {escape} that ends the pattern '{pattern}'"
                )
            elements.append(following)
        elif character in ("_", "%"):
            elements.append(_Wild(character))
        else:
            elements.append(character)
    return elements


def _search(pieces: list[str]) -> Matcher:
    """Plain pieces with anything between them: first at the start, last at the end, others in order."""
    first, *middle, last = pieces if len(pieces) > 1 else (pieces[0], "")
    middle = [piece for piece in middle if piece]
    if len(pieces) == 1:
        return lambda text: text == first
    if not middle:
        shortest = len(first) + len(last)
        return lambda text: len(text) >= shortest and text.startswith(first) and text.endswith(last)

    def matches(text: str) -> bool:
        if not text.startswith(first) or not text.endswith(last):
            return False
        position, end = len(first), len(text) - len(last)
        for piece in middle:
            position = text.find(piece, position, end)
            if position < 0:
                return False
            position += len(piece)
        return position <= end

    return matches


def _automaton(elements: list[str | _Wild]) -> Matcher:
    """
    Bit n of the state is set while the text so far matches the first n characters of the pattern.

    One step: the bits whose next character fits move up by one; bits that stand before a % may also stay.
    """
    fits: dict[str, int] = {}  # character of the pattern: the bits it moves
    always = stays = width = 0
    for element in elements:
        if element is _Wild.MANY:
            stays |= 1 << width
            continue
        if element is _Wild.ONE:
            always |= 1 << width
        else:
            fits[element] = fits.get(element, 0) | 1 << width
        width += 1
    moves = {character: bits | always for character, bits in fits.items()}
    accepted = 1 << width

    def matches(text: str) -> bool:
        state = 1
        for character in text:
            state = (state & moves.get(character, always)) << 1 | state & stays
            if not state:
                return False
        return bool(state & accepted)

    return matches
