"""Lifetime policies: how a peer names them, and what each waits for."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from amqp_ext import codec
from amqp_ext.codec import Described, Symbol, ULong
from amqp_ext.terminus_fields import Lifetime, LifetimeError, read_lifetime

KEY = Symbol("lifetime-policy")


@pytest.mark.parametrize("lifetime", Lifetime)
def test_a_policy_is_named_by_code_or_by_symbol(lifetime: Lifetime) -> None:
    """Both descriptors of AMQP 1.0 are understood, through real bytes, whatever else the properties say."""
    for descriptor in (ULong(lifetime.code), Symbol(lifetime.symbol)):
        properties = {Symbol("x"): 1, KEY: Described(descriptor, [])}
        assert read_lifetime(codec.decode(codec.encode(properties))[0]) is lifetime


@pytest.mark.parametrize(
    "properties", [None, {}, {Symbol("supported-dist-modes"): Symbol("move")}, {KEY: None}]
)
def test_who_names_none_gets_delete_on_close(properties: Any) -> None:
    """Without a policy a node goes with the link that made it."""
    assert read_lifetime(properties) is Lifetime.DELETE_ON_CLOSE


@pytest.mark.parametrize(
    "properties",
    [
        [],
        "amqp:delete-on-close:list",
        {KEY: Symbol("amqp:delete-on-close:list")},
        {KEY: 0x2B},
        {KEY: Described(ULong(0x2A), [])},
        {KEY: Described(ULong(0x2F), [])},
        {KEY: Described(Symbol("delete-on-close"), [])},
        {KEY: Described(Symbol("amqp:delete-on-close:list"), [1])},
        {KEY: Described(ULong(0x2B), "x")},
        {KEY: Described([], [])},
    ],
)
def test_what_is_no_policy_is_an_error(properties: Any) -> None:
    """A wrong type, an unknown descriptor and a list that is not empty are refused, with what would be right."""
    with pytest.raises(
        LifetimeError, match=r"are a map|is an empty list described as one of amqp:delete-on-close"
    ):
        read_lifetime(properties)


@pytest.mark.parametrize(
    ("lifetime", "ends"),
    [
        (Lifetime.DELETE_ON_CLOSE, lambda maker, links, messages: not maker),
        (Lifetime.DELETE_ON_NO_LINKS, lambda maker, links, messages: not links),
        (Lifetime.DELETE_ON_NO_MESSAGES, lambda maker, links, messages: not maker and not messages),
        (Lifetime.DELETE_ON_NO_LINKS_OR_MESSAGES, lambda maker, links, messages: not links and not messages),
    ],
)
def test_when_a_life_is_over(lifetime: Lifetime, ends: Any) -> None:
    """In every case that there can be, a node's life ends exactly as sections 3.5.10 to 3.5.13 say."""
    for maker, others, messages in product((False, True), repeat=3):
        links = maker or others
        over = lifetime.is_over(has_maker=maker, has_links=links, has_messages=messages)
        assert over == ends(maker, links, messages)
