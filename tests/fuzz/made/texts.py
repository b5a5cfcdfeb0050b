"""Texts by grammar: selectors, addresses and starts of a replay, right ones, odd ones, and ones with a mistake."""

from __future__ import annotations

from random import Random
from urllib.parse import quote

from tests.fuzz.made.values import EDGES, word

QUEUES = tuple(f"q{number}" for number in range(24))
"""Names of queues: few, as each that is made stays."""

_FIELDS = (
    "size",
    "name",
    "flag",
    "JMSPriority",
    "JMSMessageID",
    "JMSType",
    "JMSXGroupID",
    "JMSTimestamp",
    "JMSDeliveryMode",
    "JMSXDeliveryCount",
    "properties.subject",
    "amqp.annotation.x-opt-topic",
    '"quoted name"',
    "[sql]",
    "JMSXUserID",
    "$x",
    "_",
    "p.a",
    "a.b.c",
    "JMSCorrelationID",
    "header.priority",
)
_NUMBERS = (
    "0",
    "1",
    "-1",
    "1.5",
    "1e308",
    "1e999",
    "0x1F",
    "017",
    "0b1",
    "5L",
    "2.",
    ".5",
    "1d",
    "99999999999999999999",
    "1_000",
)
_STRINGS = (
    "''",
    "'a'",
    "'it''s'",
    "'%'",
    "'_'",
    "'a_%'",
    "'\\_%'",
    "'é'",
    "'f%'",
    "'" + "%a" * 60 + "'",
    "'" + "_" * 200 + "'",
)
_OPERATORS = ("=", "<>", "<", "<=", ">", ">=", "+", "-", "*", "/", "!=", "%")


def mistaken(dice: Random, text: str, chance: float = 0.12) -> str:
    """A text that is now and then cut, doubled, or has something put in."""
    if dice.random() >= chance:
        return text
    at = dice.randrange(len(text) + 1)
    return dice.choice(
        (
            text[:at],
            text[:at] + dice.choice("'()\0?&/%=#>*!é\\ ") + text[at:],
            text + text,
            text[at:],
            text.upper(),
        )
    )


# --- selectors ----------------------------------------------------------------------------------------------------


def selector(dice: Random) -> str:
    """A message selector (JMS 2.0 section 3.8), or what looks like one."""
    rolled = dice.random()
    if rolled < 0.01:
        deep = dice.choice((10, 100, 1_000, 2_000))
        return "(" * deep + "a = 1" + ")" * deep
    if rolled < 0.02:
        return dice.choice((" AND ", " OR ", "+")).join(["size"] * dice.choice((50, 400, 900)))
    if rolled < 0.04:
        return position(dice)
    if rolled < 0.06:
        return "replay-start = " + dice.choice(_STRINGS)
    return mistaken(dice, _condition(dice, 0))


def position(dice: Random) -> str:
    """A position as clients of Event Hubs select it."""
    field = dice.choice(("offset", "sequence-number", "enqueued-time", "x"))
    place = dice.choice(("'-1'", "'@latest'", "'0'", str(dice.choice(EDGES)), f"'{dice.choice(EDGES)}'"))
    return mistaken(dice, f"amqp.annotation.x-opt-{field} {dice.choice(('>', '>=', '='))} {place}", 0.1)


def _condition(dice: Random, depth: int) -> str:
    if depth > 3 or dice.random() < 0.4:
        return _test(dice)
    match dice.randrange(4):
        case 0:
            return f"NOT ({_condition(dice, depth + 1)})"
        case 1:
            return f"({_condition(dice, depth + 1)})"
        case _:
            return f"{_condition(dice, depth + 1)} {dice.choice(('AND', 'OR', 'and'))} {_condition(dice, depth + 1)}"


def _test(dice: Random) -> str:
    field, negated = dice.choice(_FIELDS), dice.choice(("", "", "NOT "))
    match dice.randrange(6):
        case 0:
            return f"{field} {negated}LIKE {dice.choice(_STRINGS)}" + dice.choice(
                ("", "", " ESCAPE '\\'", " ESCAPE ''")
            )
        case 1:
            members = ", ".join(dice.choice(_STRINGS + _NUMBERS[:3]) for _ in range(dice.randrange(5)))
            return f"{field} {negated}IN ({members})"
        case 2:
            return f"{field} {negated}BETWEEN {_sum(dice, 0)} AND {_sum(dice, 0)}"
        case 3:
            return f"{field} IS {negated}NULL"
        case _:
            return f"{_sum(dice, 0)} {dice.choice(_OPERATORS)} {_sum(dice, 0)}"


def _sum(dice: Random, depth: int) -> str:
    if depth > 2 or dice.random() < 0.7:
        return dice.choice(
            (
                dice.choice(_FIELDS),
                dice.choice(_NUMBERS),
                dice.choice(_STRINGS),
                dice.choice(("TRUE", "false")),
            )
        )
    return f"{dice.choice(('', '-', '+'))}({_sum(dice, depth + 1)} {dice.choice('+-*/')} {_sum(dice, depth + 1)})"


# --- addresses ----------------------------------------------------------------------------------------------------


def start(dice: Random) -> str:
    """The text of a replay's start."""
    return mistaken(
        dice,
        dice.choice(
            (
                "beginning",
                "live",
                "last",
                "2026-01-01T00:00:00Z",
                "2026-02-30T00:00:00Z",
                "1970-01-01T00:00:00.123+14:00",
                f"{dice.choice(EDGES)}{dice.choice('smhD')}",
                f"#{dice.choice(EDGES)}",
                "point:p",
                f"message-id:{word(dice)[:40]}",
                "rmid1:00000-00000000000-00000000-00000003",
                f"match:{_test(dice)}",
                str(dice.choice(EDGES)),
                word(dice)[:40],
            )
        ),
        0.08,
    )


def topic(dice: Random) -> str:
    """A topic, often with wildcards."""
    levels = [
        dice.choice(("a", "b", "*", "c*", ">", "", "é", "#", "!x", "x" * 60))
        for _ in range(dice.randint(1, 4))
    ]
    return "/".join(levels)


def address(dice: Random) -> str:
    """An address of any form that the gateway knows, with options."""
    name = dice.choice(QUEUES)
    where = dice.choice(
        (
            f"queue://{name}",
            name,
            f"topic://{topic(dice)}",
            f"dsub://{topic(dice)}",
            f"log://{topic(dice)}",
            f"log://#queue/{name}",
            "log://>",
            f"/queues/{quote(name)}",
            f"/exchanges/{name}/{topic(dice)}",
            f"/exchanges/{name}",
            "/management",
            f"{name}/ConsumerGroups/$default/Partitions/0",
            f"{name}/Partitions/0",
            f"{name}/$management",
            "$cbs",
            "$management",
            f"#P2P/TTMP/{name}",
            f"amqp://host:1/{name}",
            f"http://{name}",
            f"/amq/queue/{name}",
            f"/topic/{topic(dice)}",
            "",
        )
    )
    if dice.random() < 0.5:
        where += "?" + "&".join(_option(dice) for _ in range(dice.randint(1, 3)))
    return mistaken(dice, where, 0.03)


def _option(dice: Random) -> str:
    match dice.choice(
        (
            "create",
            "epoch",
            "exclusive",
            "kind",
            "start",
            "start",
            "until",
            "rate",
            "generation",
            "missing",
            "odd",
        )
    ):
        case "create":
            return f"create={dice.choice(('always', 'never', 'x'))}"
        case "epoch":
            return f"epoch={dice.choice(EDGES)}"
        case "exclusive":
            return f"exclusive={dice.choice(('wait', 'refuse', 'steal', ''))}"
        case "kind":
            return f"kind={dice.choice(('queue', 'stream', 'x'))}"
        case "start":
            text = start(dice)
            return f"replay-start={quote(text) if dice.random() < 0.5 else text}"
        case "until":
            return f"until={start(dice)}"
        case "rate":
            return f"{dice.choice(('rate', 'speed'))}={dice.choice(('1', '0', '-1', '1e9', 'nan', '1000', '0.5', 'x'))}"
        case "generation":
            return f"generation={dice.choice(EDGES)}"
        case "missing":
            return f"missing={dice.choice(('refuse', 'beginning', 'x'))}"
        case _:
            return f"{quote(word(dice)[:30])}={dice.choice(('', '%', '%zz', '%ff', '+'))}"
