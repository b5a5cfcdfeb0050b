"""
What a user needs to be permitted for a job: when it begins, and as long as it goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeAlias

from amqp_ext.addresses.address import AddressKind, parse_target
from amqp_ext.addresses.texts import AddressError
from amqp_ext.topics import TopicPattern, TopicSyntaxError
from gateway.core.model import COPY, ReplayRecord
from gateway.core.permissions import Action, Permissions

PermissionsOf: TypeAlias = Callable[[str, str], Permissions]
"""Called with the name of a user and of a Message VPN: what the user may do there, as the directory has it now."""


class Demand(NamedTuple):
    """Something that one of several rules has to permit."""

    what: str
    """For a sentence, behind "may not"."""
    rules: tuple[tuple[Action, AddressKind, str], ...]

    def is_met(self, permissions: Permissions) -> bool:
        """Whether a user with these permissions may do it."""
        return any(permissions.decide(*rule).is_allowed for rule in self.rules)


WHOLE_LOG: Final = Demand("administer log://>", ((Action.ADMINISTER, AddressKind.LOG, ">"),))


def to_copy(patterns: Sequence[str], target: object, *, is_remote: bool) -> list[Demand]:
    """
    What a copy demands.

    Args:
        patterns: Its subscriptions, exceptions among them; none for all.
        target: Its address; what is none is said to be by the operation.
        is_remote: The address is one of another gateway.
    """
    if is_remote:
        # What goes to another gateway goes there as the configuration's user: that is no user's own to send.
        return [WHOLE_LOG]
    positive = [pattern for pattern in patterns if not pattern.startswith("!")] or [">"]
    return [*map(_to_read, positive), to_publish(target)]


def to_return(queue: str, target: object) -> list[Demand]:
    """
    What sending dead letters back demands.

    Args:
        queue: Where they lie.
        target: An address; empty for where each message died.
    """
    administered = Demand(
        f"administer queue://{queue[:250]}", ((Action.ADMINISTER, AddressKind.QUEUE, queue),)
    )
    # Where each goes is said in the message, by whoever could publish to the queue.
    return [administered, to_publish(target) if target else WHOLE_LOG]


def _to_read(pattern: str) -> Demand:
    """What is copied is read, as by ``log://``."""
    try:
        TopicPattern.parse(pattern)
    except TopicSyntaxError:
        return WHOLE_LOG
    return Demand(
        f"read log://{pattern}: it takes the right to consume it, or to administer it",
        ((Action.CONSUME, AddressKind.LOG, pattern), (Action.ADMINISTER, AddressKind.LOG, pattern)),
    )


def to_publish(address: object) -> Demand:
    """What publishing to an address demands."""
    try:
        target = parse_target(address) if isinstance(address, str) else None
    except AddressError:
        target = None
    if target is None or target.kind not in (AddressKind.QUEUE, AddressKind.TOPIC):
        return WHOLE_LOG
    return Demand(
        f"publish to {target.kind.value}://{target.name}: it takes the right to publish to it, or to administer it",
        ((Action.PUBLISH, target.kind, target.name), (Action.ADMINISTER, target.kind, target.name)),
    )


def why_not(record: ReplayRecord, permissions: Permissions) -> str:
    """Why a job may not go on in its requester's name; empty where it may."""
    demands = (
        to_copy(record.subscriptions, record.target, is_remote=bool(record.remote))
        if record.kind == COPY
        else to_return(record.source, record.target)
    )
    for demand in demands:
        if not demand.is_met(permissions):
            return f"user {record.requester!r}, who began it, may no longer {demand.what}"
    return ""
