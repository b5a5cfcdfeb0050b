"""
The queue or stream that an address names, made where that is allowed.
"""

from __future__ import annotations

from collections.abc import Mapping

from amqp_ext.addresses.address import Address
from gateway.amqp.attach.client import Client
from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.endpoint.settings import EndpointKind, Exclusivity


def kind_of_queue(client: Client, address: Address) -> EndpointKind | None:
    """
    What an attach says that its queue is; None where it says nothing. One that it makes may be a stream without a word,
    as the listener's dialect has it.
    """
    vpn = client.vpn
    kind = kind_of(address.options)
    if kind is None and client.spoken.queues_are_streams and vpn.endpoints.find(address.name) is None:
        return EndpointKind.STREAM
    return kind


def queue_at(client: Client, address: Address) -> Endpoint:
    """
    The queue or stream at an address; await that it is committed.

    Raises:
        Refused: NOT_FOUND, it is not there and may not be made; PRECONDITION_FAILED, it is another than the address
            says.
    """
    vpn = client.vpn
    return vpn.endpoints.queue_for(
        address.name,
        kind=kind_of_queue(client, address),
        exclusive=exclusivity_of(address.options),
        may_create=address.options.get("create") != "never",
    )


def exclusivity_of(options: Mapping[str, str]) -> Exclusivity | None:
    """What the options of an address say of who may consume from a queue; None where they say nothing."""
    text = options.get("exclusive")
    return Exclusivity(text) if text is not None else None


def kind_of(options: Mapping[str, str]) -> EndpointKind | None:
    """Whether the options of an address say queue or stream; None where they say nothing."""
    text = options.get("kind")
    return EndpointKind(text) if text is not None else None
