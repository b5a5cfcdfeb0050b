"""
Sources and targets of a peer's attach (AMQP 1.0 sections 3.5.3 and 3.5.4): the check of their fields' types and values,
and facts about them that an engine may not report.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from amqp_ext.codec import Described, Symbol, UInt
from amqp_ext.frames.performatives import described
from amqp_ext.transactions import Outcome, OutcomeError, read_outcome

SOURCE: Final = 0x28
TARGET: Final = 0x29
DECODE_ERROR: Final = "amqp:decode-error"
INVALID_FIELD: Final = "amqp:invalid-field"


@dataclass(frozen=True, slots=True)
class BadTerminus:
    """
    An invalid source or target, for which the attach is refused.

    Attributes:
        field: The name of the invalid field.
        text: A sentence for the peer.
    """

    condition: str
    field: str
    text: str


@dataclass(frozen=True, slots=True)
class AttachedTermini:
    """
    Facts about the source and the target of an attach.

    Attributes:
        default_outcome: The source's default-outcome; None if it has none.
        bad: What is wrong with them; None if they are valid.
        null: Which of ``source`` and ``target`` are null.
        undynamic: Which of them have dynamic-node-properties without being dynamic.
    """

    default_outcome: Outcome | None = None
    bad: BadTerminus | None = None
    null: tuple[str, ...] = ()
    undynamic: tuple[str, ...] = ()


def _is_string(value: Any) -> bool:
    return isinstance(value, str) and not isinstance(value, Symbol)


def _is_symbols(value: Any) -> bool:
    """Whether a field that may have several values is one symbol, or an array; some peers write a list."""
    return all(isinstance(symbol, Symbol) for symbol in (value if isinstance(value, list) else [value]))


def _is_fields(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(key, Symbol) for key in value)


_Check = tuple[str, Callable[[Any], bool], str, frozenset[Any] | None]
"""A field's name, the test of its type, that type in words, and its allowed values (None: any)."""


def _of(kind: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kind)


_EXPIRY_POLICIES: Final = frozenset({"link-detach", "session-end", "connection-close", "never"})

_COMMON: Final[tuple[_Check, ...]] = (
    ("address", _is_string, "a string", None),
    ("durable", _of(UInt), "a uint", frozenset({0, 1, 2})),
    ("expiry-policy", _of(Symbol), "a symbol", _EXPIRY_POLICIES),
    ("timeout", _of(UInt), "a uint", None),
    ("dynamic", _of(bool), "a boolean", None),
    ("dynamic-node-properties", _is_fields, "a map with symbols for keys", None),
)
_CAPABILITIES: Final[_Check] = ("capabilities", _is_symbols, "one or several symbols", None)
_DYNAMIC: Final = 4
_NODE_PROPERTIES: Final = 5
_DEFAULT_OUTCOME: Final = 8

_CHECKS: Final[dict[int, tuple[str, tuple[_Check, ...]]]] = {
    SOURCE: (
        "source",
        (
            *_COMMON,
            ("distribution-mode", _of(Symbol), "a symbol", frozenset({"move", "copy"})),
            ("filter", _is_fields, "a map with symbols for keys", None),
            # read_termini reads default-outcome, and amqp_ext.terminus_fields reads outcomes.
            ("default-outcome", _of(Described), "described", None),
            ("outcomes", lambda _: True, "", None),
            _CAPABILITIES,
        ),
    ),
    TARGET: ("target", (*_COMMON, _CAPABILITIES)),
}


def read_termini(source: Any, target: Any) -> AttachedTermini:
    """
    Check a decoded source and target. Null is only noted; a terminus of another kind, such as a coordinator, is not
    looked at.
    """
    null: list[str] = []
    undynamic: list[str] = []
    for name, terminus in (("source", source), ("target", target)):
        code, fields = described(terminus)
        if terminus is None:
            null.append(name)
        if code not in _CHECKS:
            continue
        bad = _bad(code, fields)
        if bad is not None:
            return AttachedTermini(bad=bad)
        if fields[_NODE_PROPERTIES:] and fields[_NODE_PROPERTIES] and fields[_DYNAMIC] is not True:
            undynamic.append(name)
    code, fields = described(source)
    outcome = fields[_DEFAULT_OUTCOME] if code == SOURCE and fields[_DEFAULT_OUTCOME:] else None
    try:
        default_outcome = None if outcome is None else read_outcome(outcome)
    except OutcomeError as error:
        text = f"the default-outcome of the source: {error}"
        return AttachedTermini(bad=BadTerminus(INVALID_FIELD, "default-outcome", text))
    return AttachedTermini(default_outcome, None, tuple(null), tuple(undynamic))


def _bad(code: int, fields: Any) -> BadTerminus | None:
    end, checks = _CHECKS[code]
    if not isinstance(fields, list):
        return BadTerminus(DECODE_ERROR, end, f"a {end} is a list")
    for (name, is_its_type, type_name, there_are), value in zip(checks, fields, strict=False):
        if value is None:
            continue
        if not is_its_type(value):
            text = f"the field {name} of a {end} is {type_name}, not {value!r:.60}"
            return BadTerminus(DECODE_ERROR, name, text)
        if there_are is not None and value not in there_are:
            names = ", ".join(map(str, sorted(there_are)))
            return BadTerminus(
                INVALID_FIELD, name, f"the field {name} of a {end} is one of {names}, not {value!r:.60}"
            )
    return None
