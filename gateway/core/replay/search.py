"""
The search for a replay start: the first message that a selector matches, or that has a message-id. Also the text by
which properties of messages are indexed, so that a store need not read all messages.

``Search.takes`` decides whether a message is one that is searched for. A ``Search`` also has what all these messages
have in common: their text in an index, and bytes that they contain. Both only narrow the search down, so that the same
message is found with an index and without one.

Invariant of the index: two values that are equal for a selector's ``=`` or a message-id start are indexed by the same
text, if the wanted value has a text here (``lookup_text``). The reverse need not hold: a message that was looked up is
compared again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from amqp_ext.codec import CodecError
from amqp_ext.message.fields import JMS_TYPE_PREFIX, readings, traces
from amqp_ext.message.keys import FIELDS
from amqp_ext.message.sections import MessageView
from amqp_ext.replay_start import ReplayStart, StartKind
from amqp_ext.selector.fields import Reference
from amqp_ext.selector.lexer import SelectorError
from amqp_ext.selector.selector import Equation, compile_selector, split_conjunction
from gateway.core.errors import ErrorCode, refusing
from gateway.core.model import Row

TEXT_CHARACTERS: Final = 128
"""How much of a text is indexed: enough to distinguish values, and a limit for the size of a row."""

_EXACT: Final = 1 << 53
"""Up to here every integer is the same number as its float (JMS compares both as floats)."""

_NAMES: Final = {Reference("properties", attribute): name for name, attribute in FIELDS.items()}
_JMS_NAMES: Final = {"JMSMessageID": "message-id", "JMSCorrelationID": "correlation-id"}


def indexed_text(message: MessageView, name: str) -> str | None:
    """The text by which a message is indexed for a property; None when it has no such property, or cannot be read."""
    text = property_text(message, name)
    return None if text is None else text[:TEXT_CHARACTERS]


def property_text(message: MessageView, name: str) -> str | None:
    """The whole text of a property's value; None when the message has no such property, or cannot be read."""
    try:
        field = FIELDS.get(name)
        value = (
            message.application_properties.get(name) if field is None else getattr(message.properties, field)
        )
    except CodecError:
        return None
    return _whole_text_of(value)


def text_of(value: Any) -> str | None:
    """The text by which a value is indexed; None for null, lists and maps, which are never looked up."""
    text = _whole_text_of(value)
    return None if text is None else text[:TEXT_CHARACTERS]


def _whole_text_of(value: Any) -> str | None:
    match value:
        case bool():
            return "true" if value else "false"
        case int() | UUID():
            return str(int(value)) if isinstance(value, int) else str(value)
        case float():
            return str(int(value)) if abs(value) <= _EXACT and value.is_integer() else repr(float(value))
        case str():
            return str(value)
        case bytes():
            return value.hex()
    return None


def lookup_text(value: Any) -> str | None:
    """
    The text by which all values are indexed that a selector takes for equal to this literal.

    None where there is no such text: for numbers that are not integers, or that a float does not hold exactly.
    """
    if isinstance(value, bool | str) or (isinstance(value, int) and abs(value) <= _EXACT):
        return text_of(value)
    return None


def name_of(reference: Reference, value: Any) -> str | None:
    """The property that a selector compares with ``value``; None if that cannot be indexed."""
    section, name = reference
    if section == "application_properties":
        return None if name in FIELDS else name
    if section == "jms" and isinstance(value, str) and not value.startswith(JMS_TYPE_PREFIX):
        # Without a prefix for another type, the value is the field's own text.
        return _JMS_NAMES.get(name)
    return _NAMES.get(reference)


_READ_AS_THEY_ARE: Final = frozenset({"properties", "application_properties", "message_annotations"})
"""Sections in which a text that equals a literal is stored with the literal's bytes."""


PAGE_STEPS: Final = 200_000
"""The most steps of some 100 ns for the test of one page's messages: 20 ms, about the time to read a page."""

ROW_STEPS: Final = 20
"""The steps for the test of any message, in addition to those of its content."""


@dataclass(frozen=True, slots=True)
class Key:
    """Every message that is searched for is indexed under one of ``texts`` for this property."""

    name: str
    texts: tuple[str, ...]


class PageWork:
    """The steps that the messages of one page of a search have taken."""

    __slots__ = ("_steps", "unknown")

    def __init__(self) -> None:
        self._steps = 0
        self.unknown = 0
        """How many messages have no result, because their test would have taken too long."""

    def add(self, view: MessageView) -> None:
        """A message was tested."""
        self._steps += ROW_STEPS + view.spent
        self.unknown += view.is_exhausted

    @property
    def is_over(self) -> bool:
        """Whether the page has taken its steps: other work has its turn."""
        return self._steps >= PAGE_STEPS


@dataclass(frozen=True, slots=True)
class Search:
    accepts: Callable[[MessageView], bool]
    """Whether a message is one that is searched for. It may raise CodecError if the message cannot be read."""
    matches: Callable[[str], bool] | None = None
    """Whether messages of a topic are to be tested; None for all topics."""
    keys: tuple[Key, ...] = ()
    needles: tuple[bytes, ...] = ()
    """Every message that is searched for contains one of these; empty when that is not known."""

    def takes(self, row: Row, work: PageWork | None = None) -> bool:
        """
        Whether this is a message that is searched for. A message that cannot be read, or whose result is unknown, is
        not.

        Args:
            work: Counts the steps of the test.
        """
        _, _, topic, bare, _, held, content = row
        if held is not None or not (self.matches is None or self.matches(topic)):
            return False
        view = MessageView(content, bare)
        try:
            return self.accepts(view)
        except CodecError:
            return False
        finally:
            if work is not None:
                work.add(view)


def search_for(start: ReplayStart, matches: Callable[[str], bool] | None) -> Search | None:
    """
    The search that is needed before a start can be resolved; None for a start that names its place itself.

    Args:
        matches: The topics that will be replayed: a replay starts at a message that it delivers.

    Raises:
        Refused: UNKNOWN_START, the selector is invalid; the text says where.
    """
    if start.kind is StartKind.MESSAGE_ID:
        return _for_message_id(str(start.value), matches)
    if start.kind is StartKind.MATCH:
        return _for_selector(str(start.value), matches)
    return None


def _for_message_id(text: str, matches: Callable[[str], bool] | None) -> Search:
    ids = readings(text)
    texts = {filed for filed in map(text_of, ids) if filed is not None}
    return Search(
        lambda message: message.properties.message_id in ids,
        matches,
        (Key("message-id", tuple(sorted(texts))),),
        traces(ids),
    )


def _for_selector(text: str, matches: Callable[[str], bool] | None) -> Search:
    with refusing(
        SelectorError, code=ErrorCode.UNKNOWN_START, saying="the selector of the replay start is invalid: "
    ):
        selector = compile_selector(text)
        comparisons = [term.comparison for term in split_conjunction(text)]
    equations = [equation for equation in comparisons if equation is not None and equation.operator == "="]
    keys = [key for key in map(_key, equations) if key is not None]
    longest = max(map(_needle, equations), key=len, default=b"")
    return Search(selector, matches, tuple(keys), (longest,) if longest else ())


def _key(equation: Equation) -> Key | None:
    name, text = name_of(equation.reference, equation.value), lookup_text(equation.value)
    return None if name is None or text is None else Key(name, (text,))


def _needle(equation: Equation) -> bytes:
    """Bytes that every message contains for which the equation holds; empty where that is not known."""
    value = equation.value
    if not isinstance(value, str) or equation.reference.section not in _READ_AS_THEY_ARE:
        return b""
    # A single character may be an AMQP char, which is encoded in UTF-32.
    return value.encode() if len(value) > 1 or value.isascii() else b""
