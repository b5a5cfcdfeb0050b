"""
LIKE patterns: ``_`` is any one character, ``%`` any number of them (Jakarta Messaging 3.1 section 3.8.1.1).

No regular expressions: a pattern comes from a stranger, and a backtracking matcher can be made to run for
hours. Invariant: a match takes time linear in the subject, whatever the pattern, and a matcher says beforehand how
much that is. Patterns without ``_`` are searched piece by piece with str's own methods. In others, what stands before
the first ``%`` and behind the last one is compared where it must be, and what is between them runs as a bit-parallel
automaton, a few integer operations a character.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

Matcher = Callable[[str], bool]

QUICK_CHARACTERS: Final = 32
"""Characters that str's own methods look through in the time of one step: at least a few times that many."""

WIDE: Final = 1_000
"""Characters of a pattern by which a step of the automaton takes as long again: its state is one long integer."""


@dataclass(frozen=True, slots=True)
class LikePattern:
    """
    A compiled pattern.

    Attributes:
        matches: Whether a whole text matches.
        steps_per_character: What ``matches`` takes for each character of a long text at most, in steps of the
            automaton, of some 100 ns each.
        fixed_characters: What of any text has its place before it is asked for: it costs no more than that.
    """

    matches: Matcher
    steps_per_character: float
    fixed_characters: int = 0

    def steps(self, text: str) -> int:
        """The most that ``matches`` takes for this text."""
        return int(len(text) * self.steps_per_character) + self.fixed_characters


class _Wild(Enum):
    ONE = "_"
    MANY = "%"


def compile_like(pattern: str, escape: str | None = None) -> LikePattern:
    """
    What a pattern matches, and what asking costs.

    Args:
        escape: One character that takes the meaning of wildcard from the character after it.

    Raises:
        ValueError: Nothing follows the last escape, or ``escape`` is not one character.
    """
    if escape is not None and len(escape) != 1:
        raise ValueError(f"expected one character after ESCAPE, found '{escape}'")
    elements = _elements(pattern, escape)
    if _Wild.ONE in elements:
        return _around(elements)
    return LikePattern(_search(_pieces(elements)), 1 / QUICK_CHARACTERS)


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


def _around(elements: list[str | _Wild]) -> LikePattern:
    """A pattern with ``_``: its head and its tail have their places, and only what is between them is searched for."""
    if _Wild.MANY not in elements:
        size = len(elements)
        equals = _automaton(elements)
        return LikePattern(lambda text: len(text) == size and equals(text), 0, size)
    first = elements.index(_Wild.MANY)
    last = len(elements) - 1 - elements[::-1].index(_Wild.MANY)
    head, middle, tail = elements[:first], elements[first : last + 1], elements[last + 1 :]
    begins, contains, ends = _automaton(head), _middle(middle), _automaton(tail)
    before, behind = len(head), len(tail)

    def matches(text: str) -> bool:
        end = len(text) - behind
        return (
            end >= before
            and begins(text[:before])
            and ends(text[end:])
            and contains.matches(text[before:end] if before or behind else text)
        )

    return LikePattern(matches, contains.steps_per_character, before + behind)


def _middle(elements: list[str | _Wild]) -> LikePattern:
    """From the first ``%`` to the last one."""
    if set(elements) == {_Wild.MANY}:
        return LikePattern(lambda text: True, 0)
    if _Wild.ONE in elements:
        return LikePattern(_automaton(elements), 1 + len(elements) / WIDE)
    return LikePattern(_search(_pieces(elements)), 1 / QUICK_CHARACTERS)


def _pieces(elements: list[str | _Wild]) -> list[str]:
    """The plain texts between one ``%`` and the next."""
    pieces = [""]
    for element in elements:
        if isinstance(element, str):
            pieces[-1] += element
        else:
            pieces.append("")
    return pieces


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
