"""
The queue or stream that an address names, made where that is allowed.
"""

from __future__ import annotations

from amqp_ext.addresses import Address
from gateway.amqp.attach.client import Client
from gateway.core.effects import Effect
from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.endpoint.settings import EndpointKind


def kind_of_queue(client: Client, address: Address) -> EndpointKind | None:
    """
    What an attach says that its queue is; None where it says nothing. One that it makes may be a stream without a word,
    as the listener's dialect has it.
    """
    vpn = client.vpn
    kind = vpn.kind_of(address.options)
    if kind is None and client.spoken.queues_are_streams and vpn.broker.find(address.name) is None:
        return EndpointKind.STREAM
    return kind


def queue_at(client: Client, address: Address) -> tuple[Endpoint, list[Effect]]:
    """
    The queue or stream at an address, and what has to be committed for it.

    Raises:
        Refused: NOT_FOUND, it is not there and may not be made; PRECONDITION_FAILED, it is another than the address
            says.
    """
    vpn = client.vpn
    endpoint, effects = vpn.broker.queue_for(
        address.name,
        kind=kind_of_queue(client, address),
        exclusive=vpn.exclusivity_of(address.options),
        may_create=address.options.get("create") != "never",
    )
    return endpoint, list(effects)
