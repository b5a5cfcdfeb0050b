"""
The permissions of a user, and the rule that decides each.

A user has a list of address patterns for each action. A list permits an address that one of its patterns covers and
none of its exceptions (a leading ``!``) touches. The order has no meaning, as with the exceptions of a subscription, so
that no later rule can undo an earlier one. Solace's ACL profiles and RabbitMQ's permissions have no order either.

A request for a topic pattern is permitted as a whole or not at all: one pattern of the list has to cover it. If the
gateway left out the topics that are not permitted, the reader would get a log with gaps and not know it.

====================  =====================================================================
a user without lists  may do everything but administer, in the Message VPNs open to them
a user with any list  may do what the lists say; a missing list permits nothing
``browse``            is permitted by its own list or by that of ``consume`` (as in Solace)
``replay``            of an endpoint needs ``consume`` on it, and its own list if there is one
``administer``        is never permitted without a list, because it can delete
====================  =====================================================================

Source of the order of rights: Solace documentation, "Configuring ACL Profiles" and "Configuring Queues" (permission
levels, where consume includes read-only).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from amqp_ext.addresses.address import AddressKind, queue_of_topic
from amqp_ext.addresses.patterns import AddressPattern
from amqp_ext.topics import TopicPattern


class Action(enum.Enum):
    """An action that can be permitted. The value is its name in the configuration and in texts."""

    PUBLISH = "publish"
    CONSUME = "consume"
    BROWSE = "browse"
    REPLAY = "replay"
    ADMINISTER = "administer"


class Decision(NamedTuple):
    """Whether an action is permitted, and the rule that decided, for the gateway's log: no peer sees the rules."""

    is_allowed: bool
    rule: str


class ListedDecision(Decision):
    """A decision by a pattern of a list: ``rule`` is the list's name and the pattern."""

    __slots__ = ()


class Permissions:
    """
    The permissions of one user. Immutable.

    Args:
        lists: Patterns by action. A missing action has no list, which is not the same as an empty list.
        is_open: Everything is permitted, because no users are configured.

    Raises:
        amqp_ext.addresses.forms.AddressError: A text is not a valid pattern.
    """

    __slots__ = ("_is_open", "_lists")

    def __init__(self, lists: Mapping[Action, Sequence[str]], *, is_open: bool = False) -> None:
        self._lists = {action: _List(action, texts) for action, texts in lists.items()}
        self._is_open = is_open

    @property
    def is_open(self) -> bool:
        """Everything is permitted, because no users are configured."""
        return self._is_open

    def decide(self, action: Action, kind: AddressKind, name: str) -> Decision:
        """
        Whether an action is permitted, and the rule that decided.

        Args:
            kind: QUEUE, TOPIC or LOG.
            name: The queue, or the topic to publish to; for every other action on TOPIC or LOG, the topic pattern.

        Raises:
            amqp_ext.topics.TopicSyntaxError: The topic pattern is invalid.
        """
        if self._is_open:
            return Decision(True, "no users are configured")
        if action is Action.ADMINISTER:
            return self._by_list(action, kind, name)
        if not self._lists:
            return Decision(True, "the user has no rules")
        match action:
            case Action.PUBLISH if kind is AddressKind.TOPIC and (queue := queue_of_topic(name)):
                # A queue's own topic is another address of the queue, so the queue's permission decides.
                return self._by_list(action, AddressKind.QUEUE, queue)
            case Action.BROWSE:
                consume = self._by_list(Action.CONSUME, kind, name)
                return consume if consume.is_allowed else self._by_list(action, kind, name)
            case Action.REPLAY:
                consume = self._by_list(Action.CONSUME, kind, name)
                if not consume.is_allowed or action not in self._lists:
                    return consume
        return self._by_list(action, kind, name)

    def _by_list(self, action: Action, kind: AddressKind, name: str) -> Decision:
        listed = self._lists.get(action)
        if listed is None:
            return Decision(False, f"no {action.value} list")
        if kind is AddressKind.QUEUE or action is Action.PUBLISH:
            return listed.decide_name(kind, name)
        return listed.decide_pattern(kind, name)


class _List:
    """The patterns of one action."""

    def __init__(self, action: Action, texts: Sequence[str]) -> None:
        self._action = action
        patterns = [AddressPattern.parse(text) for text in texts]
        self._patterns = [pattern for pattern in patterns if not pattern.is_exception]
        self._exceptions = [pattern for pattern in patterns if pattern.is_exception]

    def decide_name(self, kind: AddressKind, name: str) -> Decision:
        return self._decision(
            next((pattern for pattern in self._exceptions if pattern.matches(kind, name)), None),
            next((pattern for pattern in self._patterns if pattern.matches(kind, name)), None),
        )

    def decide_pattern(self, kind: AddressKind, text: str) -> Decision:
        asked = TopicPattern.parse(text)
        if asked.is_exception:
            asked = _ALL  # An exception asks for all other topics: only the right to all topics permits it.
        return self._decision(
            next((pattern for pattern in self._exceptions if pattern.touches(kind, asked)), None),
            next((pattern for pattern in self._patterns if pattern.covers(kind, asked)), None),
        )

    def _decision(self, exception: AddressPattern | None, pattern: AddressPattern | None) -> Decision:
        rule = exception or pattern
        if rule is None:
            return Decision(False, f"no pattern of {self._action.value}")
        return ListedDecision(exception is None, f"{self._action.value} {rule}")


_ALL: Final = TopicPattern.parse(">")

OPEN: Final = Permissions({}, is_open=True)
"""The permissions of everybody where no users are configured."""

NOTHING: Final = Permissions(dict.fromkeys(Action, ()))
"""The permissions of an unknown user where users are configured."""
