"""
The dialect of Event Hubs' clients, composed: its nodes, its groups of receivers, its tokens and what it does to frames.
"""

from __future__ import annotations

from collections import defaultdict

from amqp_ext.event_hubs.addresses import CBS, MANAGEMENT
from amqp_ext.event_hubs.requests import CbsNode, ManagementNode
from amqp_ext.event_hubs.wire_names import CBS_MECHANISM
from gateway.amqp.dialects.event_hubs.consumer_groups import ConsumerGroups
from gateway.amqp.dialects.event_hubs.frames import new_frames
from gateway.amqp.dialects.event_hubs.hubs import Hubs
from gateway.amqp.dialects.event_hubs.tokens import Tokens, TokenService
from gateway.amqp.dialects.hooks import Dialect, ServedNode
from gateway.users import Users


def event_hubs_dialect(users: Users) -> Dialect:
    """
    The dialect, with what its clients do in all Message VPNs of a gateway.

    Args:
        users: Whose keys sign tokens.
    """
    groups: defaultdict[str, ConsumerGroups] = defaultdict(ConsumerGroups)
    service = TokenService(users)
    return Dialect(
        nodes={
            CBS: ServedNode(CbsNode(), service.perform, looks_at_tokens=True),
            MANAGEMENT: ServedNode(ManagementNode(), Hubs(service).perform, looks_at_tokens=True),
        },
        queues_are_streams=True,
        reader_groups=groups.__getitem__,
        mechanisms=_mechanisms,
        token_check=Tokens,
        frames=new_frames,
    )


def _mechanisms(named: tuple[str, ...], accepts_tokens: bool) -> tuple[str, ...]:
    """Where tokens are taken, those that say nothing, too, and last."""
    if accepts_tokens:
        return (*(name for name in named if name != "ANONYMOUS"), "ANONYMOUS", CBS_MECHANISM)
    return (*named, CBS_MECHANISM) if "ANONYMOUS" in named else named
