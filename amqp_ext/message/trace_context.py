"""
The trace that a message belongs to: W3C Trace Context, as publishers put it on a message.

It is a text ``traceparent``, with a ``tracestate`` beside it, in the application properties, or in the message
annotations. Source: W3C Trace Context, sections 3.2 and 3.3; Trace Context: AMQP protocol.
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

from amqp_ext.codec import CodecError
from amqp_ext.message.sections import MessageView

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"

LOOKED_AT: Final = 4_096
"""Bytes from a message's beginning in which its trace context is looked for: it stands before the body."""

MOST_STATE: Final = 512
"""Characters of a tracestate that are passed on (W3C Trace Context, section 3.3.1.5); a longer one is left out."""

NEEDLE: Final = TRACEPARENT.encode()
"""Stands in every message that has a trace context."""

_PARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)
_STATE: Final = re.compile(r"[\x20-\x7e]*")


class TraceContext(NamedTuple):
    """Where a message stands in a trace: the ids of the trace and of the span that it was sent in."""

    trace_id: int
    span_id: int
    is_sampled: bool
    state: str = ""


def may_have_context(content: bytes) -> bool:
    """Whether a look at a message's sections may find a trace context; a quick search of some bytes."""
    return content.find(NEEDLE, 0, LOOKED_AT) >= 0


def context_of(content: bytes, bare: int) -> TraceContext | None:
    """
    The trace context of a message; None where it has none, or none that can be read.

    Args:
        bare: Where the bare message begins.
    """
    view = MessageView(content, bare)
    for section in ("application_properties", "message_annotations"):
        try:
            found: dict[Any, Any] = getattr(view, section)
        except CodecError:
            continue
        context = parse_context(found.get(TRACEPARENT), found.get(TRACESTATE))
        if context is not None:
            return context
    return None


def parse_context(parent: Any, state: Any = None) -> TraceContext | None:
    """
    A ``traceparent``, with the ``tracestate`` beside it; None where it is none.

    A version that is not known is read as the first one, as the recommendation has it; version ff, and ids that are
    zero, are none.
    """
    found = _PARENT.fullmatch(parent) if isinstance(parent, str) and len(parent) <= MOST_STATE else None
    if found is None or found[1] == "ff" or (found[1] == "00" and found[5]):
        return None
    trace_id, span_id = int(found[2], 16), int(found[3], 16)
    if not trace_id or not span_id:
        return None
    is_state = isinstance(state, str) and len(state) <= MOST_STATE and _STATE.fullmatch(state)
    return TraceContext(trace_id, span_id, bool(int(found[4], 16) & 1), state if is_state else "")
