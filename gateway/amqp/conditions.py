"""
Refusals as AMQP conditions: the rows of ``gateway.core.errors`` put on a detach, a close or a disposition.
"""

from __future__ import annotations

from typing import Any

from proton import Condition, int32, symbol

from amqp_ext import codec
from amqp_ext.codec import Int, Symbol
from gateway.amqp.transfers import describe_condition
from gateway.core.errors import Refused
from gateway.vpn.counters import REFUSALS


def info_of(refused: Refused) -> dict[str, Any]:
    """The info map: replay-error, subcode, and what the refusal adds."""
    info: dict[str, Any] = {}
    if refused.code.replay_error is not None:
        info["rewind:replay-error"] = Symbol(refused.code.replay_error)
    if refused.code.subcode is not None:
        info["subcode"] = Int(refused.code.subcode)
    info.update(refused.info)
    return info


def condition_of(refused: Refused) -> Condition:
    """For a link, session or connection."""
    REFUSALS[refused.code.condition] += 1
    info: dict[Any, Any] = {}
    for key, value in info_of(refused).items():
        info[symbol(key)] = symbol(str(value)) if isinstance(value, Symbol) else value
    if refused.code.subcode is not None:
        info[symbol("subcode")] = int32(refused.code.subcode)
    return Condition(refused.code.condition, refused.text, info or None)


def describe(refused: Refused) -> Any:
    """For dispositions: a function that fills in a C condition."""
    REFUSALS[refused.code.condition] += 1
    info = {Symbol(key): value for key, value in info_of(refused).items()}
    encoded = codec.encode(info) if info else b""
    return lambda condition: describe_condition(condition, refused.code.condition, refused.text, encoded)
