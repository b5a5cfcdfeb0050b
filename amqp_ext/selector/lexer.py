"""
The words of a message selector: text in, tokens out.

Two syntaxes share one lexer. JMS selectors (Jakarta Messaging 3.1 section 3.8.1, JMS 2.0 the same) take names and
numbers from the Java language; SQL filters are those of the OASIS draft "AMQP Filter Expressions" section 6 as
RabbitMQ reads them. They disagree on a few signs only, and every disagreement is decided here or marked with
``syntax``:

    sign      JMS                               SQL filter
    "x"       a name, dots allowed              a string
    [x]       -                                 a name
    0x1F      an integer (also 017, 0b1, 5L)    binary, two digits a byte
    != %      -                                 not equal, remainder

Invariant: the tokens cover the text in order without overlap, only white space lies between them, and the
last one is the only one of kind END. Work is linear in the text, and the text is bounded before it is read.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from enum import Enum, auto
from math import isinf
from typing import NoReturn
from unicodedata import category

# Both limits are RabbitMQ's idea (it allows 4,096 characters and 200 tokens): parsing happens once, but
# evaluation happens for every message, so one consumer must not be able to cause unlimited work with one
# attach. We allow more tokens because a long IN list is one hash look-up here.
MAX_CHARACTERS = 4096
MAX_TOKENS = 1000

# What an exact number may be: everything a Java long or an AMQP ulong can hold (AMQP 1.0 section 1.6).
MIN_EXACT = -(2**63)
MAX_EXACT = 2**64 - 1


class SelectorError(ValueError):
    """
    A selector that cannot be understood. ``position`` is an index into the text (from 0); ``reason`` is the error
    without the position.
    """

    def __init__(self, reason: str, position: int) -> None:
        super().__init__(f"{reason}, at character {position + 1} of the selector")
        self.reason = reason
        self.position = position


class Syntax(Enum):
    """Which language a selector is written in."""

    JMS = auto()
    SQL = auto()


class Kind(Enum):
    """What sort of word a token is."""

    NAME = auto()  # value: the name, dots included
    QUOTED_NAME = auto()  # value: the name without its quotes or brackets
    STRING = auto()  # value: the text, doubled quotes undone
    NUMBER = auto()  # value: int or float
    BINARY = auto()  # value: bytes
    KEYWORD = auto()  # value: the word in upper case
    SIGN = auto()  # value: the sign
    END = auto()  # value: ""


@dataclass(frozen=True, slots=True)
class Token:
    """One word: ``text[start:end]`` of the selector, and what it stands for."""

    kind: Kind
    value: str | int | float | bytes
    start: int
    end: int


KEYWORDS = frozenset(["AND", "BETWEEN", "ESCAPE", "FALSE", "IN", "IS", "LIKE", "NOT", "NULL", "OR", "TRUE"])

# Words the OASIS draft reserves for things neither RabbitMQ nor we evaluate.
_SQL_RESERVED = frozenset(
    ["DATE", "EXISTS", "INF", "LEFT", "LOWER", "NAN", "RIGHT", "SUBSTRING", "UPPER", "UTC"]
)

_WHITE_SPACE = " \t\f\r\n"  # section 3.8.1.1: "white space is the same as that defined for Java"
_JMS_SIGNS = ("<>", "<=", ">=", "=", "<", ">", "+", "-", "*", "/", "(", ")", ",")
_SQL_SIGNS = (*_JMS_SIGNS, "!=", "%")

# Java Language Specification sections 3.10.1 and 3.10.2. The order matters: a float comes before its integer part.
_JAVA_NUMBER = re.compile(
    r"""(?P<hex_float> 0[xX] (?: {h}(?:\.{h}?)? | \.{h} ) [pP][+-]?{d} ) [fFdD]?
      | (?P<float> (?: {d}\.{d}? | \.{d} ) (?:[eE][+-]?{d})? | {d}[eE][+-]?{d} | {d}(?=[fFdD]) )
        (?P<suffix>[fFdD])?
      | 0[xX](?P<hexadecimal>{h}) [lL]?
      | 0[bB](?P<binary>[01](?:_*[01])*) [lL]?
      | 0(?P<octal>_*[0-9](?:_*[0-9])*) [lL]?
      | (?P<decimal>{d}) [lL]?
    """.format(d="(?:[0-9](?:_*[0-9])*)", h="(?:[0-9a-fA-F](?:_*[0-9a-fA-F])*)"),
    re.VERBOSE,
)
_SQL_NUMBER = re.compile(
    r"""0[xX](?P<bytes>[0-9a-fA-F]*)
      | (?P<float> (?: [0-9]+\.[0-9]* | \.[0-9]+ ) (?:[eE][+-]?[0-9]+)? | [0-9]+[eE][+-]?[0-9]+ )
      | (?P<decimal>[0-9]+)
    """,
    re.VERBOSE,
)
_BASES = {"hexadecimal": 16, "binary": 2, "octal": 8, "decimal": 10}

# Character.isJavaIdentifierStart: letters, letter numbers, currency signs, connectors such as "_".
_START_CATEGORIES = frozenset(("Lu", "Ll", "Lt", "Lm", "Lo", "Nl", "Sc", "Pc"))
# Character.isJavaIdentifierPart adds digits, marks and formats. Java would also allow control characters,
# which no person can see; we refuse them.
_PART_CATEGORIES = _START_CATEGORIES | {"Nd", "Mn", "Mc", "Cf"}

# Event Hubs clients write annotation names with hyphens and without quotes (amqp.annotation.x-opt-offset). A
# hyphen after this prefix is therefore part of the name and not a minus.
_ANNOTATION_PREFIX = "amqp.annotation."


def tokenize(text: str, syntax: Syntax = Syntax.JMS) -> list[Token]:
    """
    Split a selector into tokens; the last is END.

    Raises:
        SelectorError: The text has a character or word that is not of the language, or too many of them.
    """
    if len(text) > MAX_CHARACTERS:
        raise SelectorError(
            f"the selector has {len(text)} characters, {MAX_CHARACTERS} are allowed", MAX_CHARACTERS
        )
    return _Lexer(text, syntax).tokens()


class _Lexer:
    def __init__(self, text: str, syntax: Syntax) -> None:
        self._text = text
        self._syntax = syntax
        self._signs = _SQL_SIGNS if syntax is Syntax.SQL else _JMS_SIGNS

    def tokens(self) -> list[Token]:
        text, length, position = self._text, len(self._text), 0
        tokens: list[Token] = []
        while True:
            while position < length and text[position] in _WHITE_SPACE:
                position += 1
            if position == length:
                tokens.append(Token(Kind.END, "", length, length))
                return tokens
            if len(tokens) == MAX_TOKENS:
                raise SelectorError(f"the selector has more than {MAX_TOKENS} words and signs", position)
            tokens.append(self._token(position))
            position = tokens[-1].end

    def _token(self, start: int) -> Token:
        text, sql = self._text, self._syntax is Syntax.SQL
        character = text[start]
        if character == "'":
            return self._enclosed(start, "'", Kind.STRING)
        if character == '"':
            return self._enclosed(start, '"', Kind.STRING if sql else Kind.QUOTED_NAME)
        if sql and character == "[":
            return self._bracketed(start)
        if character in "0123456789" or (character == "." and text[start + 1 : start + 2].isdecimal()):
            return self._number(start)
        if _starts_name(character):
            return self._word(start)
        for sign in (text[start : start + 2], character):
            if sign in self._signs:
                return Token(Kind.SIGN, sign, start, start + len(sign))
        return self._refuse_character(start)

    def _enclosed(self, start: int, quote: str, kind: Kind) -> Token:
        """Text between quotes; a doubled quote stands for one."""
        end = start + 1
        while (end := self._text.find(quote, end)) >= 0:
            if self._text[end + 1 : end + 2] != quote:
                value = self._text[start + 1 : end].replace(quote * 2, quote)
                if not value and kind is Kind.QUOTED_NAME:
                    raise SelectorError("expected a name between the quotes, found none", start)
                return Token(kind, value, start, end + 1)
            end += 2
        what = "string" if kind is Kind.STRING else "quoted name"
        raise SelectorError(f"expected a closing {quote} for the {what} that begins here, found none", start)

    def _bracketed(self, start: int) -> Token:
        """A delimited name of the OASIS draft: ``[any text]``, where [[ and ]] stand for one bracket each."""
        text, position = self._text, start + 1
        name: list[str] = []
        while position < len(text):
            character = text[position]
            if character in "[]":
                if text[position + 1 : position + 2] != character:
                    if character == "[":
                        raise SelectorError(
                            "expected [[ for a bracket inside a bracketed name, found one [", position
                        )
                    return Token(Kind.QUOTED_NAME, "".join(name), start, position + 1)
                position += 1
            name.append(character)
            position += 1
        raise SelectorError("expected a closing ] for the name that begins here, found none", start)

    def _word(self, start: int) -> Token:
        """A keyword, or a name with its dots: ``colour``, ``properties.message_id``."""
        text = self._text
        end = self._part_end(start)
        word = text[start:end].upper()
        if not self._dot_joins(end):
            if word in KEYWORDS:
                return Token(Kind.KEYWORD, word, start, end)
            if self._syntax is Syntax.SQL and word in _SQL_RESERVED:
                raise SelectorError(
                    f"{word} is reserved for a function this gateway does not have; "
                    f"a property of that name is written [{text[start:end]}]",
                    start,
                )
        while self._dot_joins(end):
            end = self._part_end(end + 1)
            if text.startswith(_ANNOTATION_PREFIX, start):
                while text[end : end + 1] in ("-", ".") and _continues_name(text[end + 1 : end + 2]):
                    end = self._part_end(end + 1)
        return Token(Kind.NAME, text[start:end], start, end)

    def _dot_joins(self, position: int) -> bool:
        dot, after = self._text[position : position + 1], self._text[position + 1 : position + 2]
        return dot == "." and _starts_name(after)

    def _part_end(self, position: int) -> int:
        while _continues_name(self._text[position : position + 1]):
            position += 1
        return position

    def _number(self, start: int) -> Token:
        sql = self._syntax is Syntax.SQL
        found = (_SQL_NUMBER if sql else _JAVA_NUMBER).match(self._text, start)
        end = found.end() if found else start
        after = self._text[end : end + 1]
        if not found or after == "." or _continues_name(after):
            end = max(end, start + 1)
            while self._text[end : end + 1] == "." or _continues_name(self._text[end : end + 1]):
                end += 1
            raise SelectorError(f"expected a number, found {self._text[start:end]}", start)
        if found.lastgroup == "bytes":
            digits = found["bytes"]
            if not digits or len(digits) % 2:
                raise SelectorError(
                    "expected an even number of hexadecimal digits after 0x, two for each byte", start
                )
            return Token(Kind.BINARY, bytes.fromhex(digits), start, end)
        return Token(Kind.NUMBER, _number_value(found, start), start, end)

    def _refuse_character(self, start: int) -> NoReturn:
        character = self._text[start]
        if character == "!" and self._text.startswith("!=", start):
            raise SelectorError("expected <> for 'not equal', found !=", start)
        is_shown = character.isprintable() and not character.isspace()
        shown = character if is_shown else f"U+{ord(character):04X}"
        raise SelectorError(f"expected a name, a literal or an operator, found the character {shown}", start)


def _number_value(found: re.Match[str], start: int) -> int | float:
    groups = {name: text.replace("_", "") for name, text in found.groupdict().items() if text is not None}
    try:
        if "hex_float" in groups:
            approximate = float.fromhex(groups["hex_float"])
        elif "float" in groups:
            approximate = float(groups["float"])
            # Java float: 0.1f equals a property set with (float) 0.1.
            if groups.get("suffix", "") in ("f", "F"):
                approximate = struct.unpack("<f", struct.pack("<f", approximate))[0]
        else:
            (form, digits) = groups.popitem()
            return _exact_value(form, digits, start)
    except OverflowError:
        approximate = float("inf")
    if isinf(approximate):
        raise SelectorError(f"expected a number in the range of a double, found {found[0]}", start)
    return approximate


def _exact_value(form: str, digits: str, start: int) -> int:
    if form == "octal" and not digits.strip("01234567") == "":
        raise SelectorError(f"expected octal digits after the leading 0, found 0{digits}", start)
    value = int(digits, _BASES[form])
    if value > MAX_EXACT:
        raise SelectorError(f"expected an integer of at most 64 bits, found {digits}", start)
    return value


def _starts_name(character: str) -> bool:
    if character.isascii():
        return character.isalpha() or character in ("_", "$")
    return category(character) in _START_CATEGORIES


def _continues_name(character: str) -> bool:
    if character.isascii():
        return character.isalnum() or character in ("_", "$")
    return category(character) in _PART_CATEGORIES
