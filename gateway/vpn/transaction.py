"""
Committing a client's transaction: its publications and its acknowledgements as one batch, all of it durable or nothing.

Invariant: between the first check and the hand-over to the writer nothing else runs, and one batch is one transaction
of the store. Ids are given out here, so publish order is commit order.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from gateway.core.effects import Publication
from gateway.core.endpoint.endpoint import Flow, Retired
from gateway.core.errors import ErrorCode, Refused

if TYPE_CHECKING:
    from gateway.vpn.message_vpn import MessageVpn


@dataclass(frozen=True, slots=True)
class Staged:
    """A message that waits for its transaction's commit."""

    topic: str
    content: bytes
    bare: int
    """Where its bare message begins."""


class _Nobody:
    """Publisher of a transaction's messages, as far as single deliveries go: the discharge's answer speaks for all."""

    def accepted(self, deliveries: Any) -> None: ...

    def not_stored(self, deliveries: Any, refused: Refused | None) -> None: ...


NOBODY: Final = _Nobody()


def commit_transaction(
    vpn: MessageVpn,
    staged: Iterable[Staged],
    acknowledged: Iterable[tuple[Flow, list[int]]],
    origin: str,
    then: Callable[[sqlite3.Error | None], None],
) -> None:
    """
    Publish messages and settle deliveries as one.

    Args:
        acknowledged: Flows, and ids that are unsettled on them.
        then: Called when all of it is durable, or with the error when nothing is.

    Raises:
        Refused: ROLLED_BACK, a message is not taken; nothing has happened.
    """
    # First, so that a message may take the room of one that it answers.
    retired = [flow.endpoint.retire(flow, ids) for flow, ids in acknowledged]
    publications: list[Publication] = []
    try:
        for topic, group in groupby(staged, key=lambda message: message.topic):
            publications.append(_publish(vpn, topic, list(group), origin))
    except Refused:
        vpn.broker.take_back(publications)
        for one in retired:
            one.undone()
        raise
    for publication in publications:
        vpn.add(publication)
        if vpn.origins.watchers:
            vpn.origins.add(publication.rows[0][0], publication.rows[-1][0] + 1, origin)
    vpn.activity += 1
    vpn.commit(
        [one.effect() for one in retired],
        lambda error: _committed(vpn, retired, error, then),
    )


def _publish(vpn: MessageVpn, topic: str, messages: list[Staged], origin: str) -> Publication:
    contents, bares = [m.content for m in messages], [m.bare for m in messages]
    publication, taken, refused = vpn.broker.publish(
        vpn.now_ms(), topic, contents, bares, (NOBODY, ()), origin=origin
    )
    if publication is not None and taken == len(messages):
        return publication
    if publication is not None:
        vpn.broker.take_back([publication])
    why = "nobody takes messages of this topic any more" if refused is None else refused.text
    raise Refused(ErrorCode.ROLLED_BACK, f"rolled back, as a message to {topic!r} is not taken: {why}")


def _committed(
    vpn: MessageVpn,
    retired: list[Retired],
    error: sqlite3.Error | None,
    then: Callable[[sqlite3.Error | None], None],
) -> None:
    for one in retired:
        if error is None:
            vpn.retired(one)
        else:
            one.undone()
    then(error)
    for one in retired:
        vpn.look_at(one.endpoint)
