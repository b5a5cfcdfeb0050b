"""Texts from a grammar: selectors, addresses and replay starts; valid ones, odd ones, and ones with a mistake."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from random import Random
from urllib.parse import quote

from tests.fuzz.made.values import EDGES, word

QUEUES = tuple(f"q{number}" for number in range(24))
"""Names of queues: few, because every queue that is made stays."""

DEEPEST = 12


class Grammar:
    """
    Makes texts from rules.

    Args:
        rules: One a line, `name: alternative | alternative`, with equal chances. In an alternative `{name}`
            stands for the text of another rule. Beyond a depth the first alternative is used, which must end it.
        made: Rules that are functions.
    """

    def __init__(self, rules: str, made: Mapping[str, Callable[[Random], str]]) -> None:
        _, *parts = re.split(r"^ *(\w+): ", rules, flags=re.MULTILINE)
        self._rules = {
            name: [each.strip() for each in text.split("|")]
            for name, text in zip(parts[::2], parts[1::2], strict=True)
        }
        self._made = made

    def make(self, dice: Random, name: str, depth: int = 0) -> str:
        """A text from the rule ``name``."""
        if name in self._made:
            return self._made[name](dice)
        alternatives = self._rules[name]
        chosen = dice.choice(alternatives) if depth < DEEPEST else alternatives[0]
        return re.sub(r"\{(\w+)\}", lambda found: self.make(dice, found[1], depth + 1), chosen)


_RULES = r"""
    condition: {test} | {test} | {test} | NOT ({condition}) | ({condition}) | {condition} {junction} {condition}
    junction: AND | OR | and
    test: {sum} {compared} {sum} | {sum} {compared} {sum} | {field} {like} {string}
        | {field} {like} {string} {escape} | {field} {in} ({members}) | {field} {between} {sum} AND {sum}
        | {field} {is} NULL
    like: LIKE | LIKE | NOT LIKE
    escape: ESCAPE '\' | ESCAPE ''
    in: IN | IN | NOT IN
    between: BETWEEN | BETWEEN | NOT BETWEEN
    is: IS | IS | IS NOT
    members: {nothing} | {member} | {member}, {member} | {member}, {member}, {member}, {member}
    member: {string} | {number}
    sum: {operand} | {operand} | {operand} | {sign}({sum} {reckoned} {sum})
    sign: {nothing} | - | +
    reckoned: + | - | * | /
    compared: = | <> | < | <= | > | >= | + | - | * | / | != | %
    operand: {field} | {number} | {string} | TRUE | false
    field: size | name | flag | JMSPriority | JMSMessageID | JMSType | JMSXGroupID | JMSTimestamp | {rare_field}
    rare_field: JMSDeliveryMode | JMSXDeliveryCount | JMSXUserID | JMSCorrelationID | properties.subject
        | {odd_field}
    odd_field: amqp.annotation.x-opt-topic | "quoted name" | [sql] | $x | _ | p.a | a.b.c | header.priority
    number: 0 | 1 | -1 | 1.5 | 1e308 | 1e999 | 0x1F | 017 | 0b1 | 5L | 2. | .5 | 1d | 99999999999999999999 | 1_000
    string: '' | 'a' | 'it''s' | '%' | '_' | 'a_%' | '\_%' | 'é' | 'f%' | '{long}'
    position: amqp.annotation.x-opt-{placed} {after} {place}
    placed: offset | sequence-number | enqueued-time | x
    after: > | >= | =
    place: '-1' | '@latest' | '0' | {edge} | '{edge}'
    start: {named_start} | {time} | {edge}{unit} | #{edge} | {edge} | match:{test} | message-id:{word} | {word}
    named_start: beginning | live | last | point:p | rmid1:00000-00000000000-00000000-00000003
    time: 2026-01-01T00:00:00Z | 2026-02-30T00:00:00Z | 1970-01-01T00:00:00.123+14:00
    unit: s | m | h | D
    topic: {level} | {level}/{level} | {level}/{level}/{level} | {level}/{level}/{level}/{level}
    level: a | b | * | c* | > | {nothing} | é | # | !x | {wide}
    address: {where} | {where} | {where}?{option} | {where}?{option}&{option}&{option}
    where: queue://{queue} | {queue} | topic://{topic} | dsub://{topic} | log://{topic} | log://#queue/{queue}
        | log://> | {rabbitmq} | {event_hubs} | #P2P/TTMP/{queue} | amqp://host:1/{queue} | http://{queue} | {nothing}
    rabbitmq: /queues/{queue} | /exchanges/{queue}/{topic} | /exchanges/{queue} | /management
        | /amq/queue/{queue} | /topic/{topic}
    event_hubs: {queue}/ConsumerGroups/$default/Partitions/0 | {queue}/Partitions/0 | {queue}/$management | $cbs
        | $management
    option: create={create} | epoch={edge} | exclusive={exclusive} | kind={kind} | replay-start={start}
        | replay-start={quoted_start} | until={start} | {pace}={rate} | generation={edge} | missing={missing}
        | {quoted_word}={broken}
    create: always | never | x
    exclusive: wait | refuse | steal | {nothing}
    kind: queue | stream | x
    pace: rate | speed
    rate: 1 | 0 | -1 | 1e9 | nan | 1000 | 0.5 | x
    missing: refuse | beginning | x
    broken: {nothing} | % | %zz | %ff | +
"""


def mistaken(dice: Random, text: str, chance: float = 0.12) -> str:
    """The text, which is sometimes cut, doubled, or has something inserted."""
    if dice.random() >= chance:
        return text
    at = dice.randrange(len(text) + 1)
    put_in = text[:at] + dice.choice("'()\0?&/%=#>*!é\\ ") + text[at:]
    return dice.choice((text[:at], put_in, text + text, text[at:], text.upper()))


def selector(dice: Random) -> str:
    """A message selector (JMS 2.0 section 3.8), or something similar."""
    rolled = dice.random()
    if rolled < 0.01:
        deep = dice.choice((10, 100, 1_000, 2_000))
        return "(" * deep + "a = 1" + ")" * deep
    if rolled < 0.02:
        return dice.choice((" AND ", " OR ", "+")).join(["size"] * dice.choice((50, 400, 900)))
    if rolled < 0.04:
        # A position as Event Hubs clients select it.
        return mistaken(dice, _GRAMMAR.make(dice, "position"), 0.1)
    if rolled < 0.06:
        return "replay-start = " + _GRAMMAR.make(dice, "string")
    return mistaken(dice, _GRAMMAR.make(dice, "condition"))


def start(dice: Random) -> str:
    """The text of a replay start."""
    return mistaken(dice, _GRAMMAR.make(dice, "start"), 0.08)


def topic(dice: Random) -> str:
    """A topic, often with wildcards."""
    return _GRAMMAR.make(dice, "topic")


def address(dice: Random) -> str:
    """An address of any form that the gateway knows, with options."""
    return mistaken(dice, _GRAMMAR.make(dice, "address"), 0.03)


_GRAMMAR = Grammar(
    _RULES,
    {
        "queue": lambda dice: dice.choice(QUEUES),
        "edge": lambda dice: str(dice.choice(EDGES)),
        "word": lambda dice: word(dice)[:40],
        "quoted_word": lambda dice: quote(word(dice)[:30]),
        "quoted_start": lambda dice: quote(start(dice)),
        "nothing": lambda _: "",
        "wide": lambda _: "x" * 60,
        "long": lambda dice: dice.choice(("%a" * 60, "_" * 200)),
    },
)
