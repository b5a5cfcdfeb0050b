"""
Answering an attach: what the peer asks for is found or made, permitted and durable; then the link is registered, and
its attach answered.

A refusal is what AMQP 1.0 section 2.6.3 has it be: the attach is answered with a null terminus and detached with the
error. The reply to a consumer says which filters are in place, and where its replay really starts.
"""

from __future__ import annotations

from proton import Link, Terminus

from amqp_ext.addresses.address import without_host
from amqp_ext.codec import Symbol
from amqp_ext.frames.termini import AttachedTermini
from gateway.amqp.attach.client import Client
from gateway.amqp.attach.request import AttachRequest, LinkSetup
from gateway.amqp.attach.sources import source_setup
from gateway.amqp.attach.targets import CoordinatorTarget, PublisherTarget, RequestNodeTerminus
from gateway.amqp.engine.conditions import code_of, condition_of, room_of, rule_of
from gateway.core.errors import ErrorCode, Refused
from gateway.logging import log_keys


async def attach(client: Client, link: Link, termini: AttachedTermini) -> None:
    """
    Answer an attach; never raises for a mistake of the peer's.

    Args:
        termini: What is said of its source and target.
    """
    request = AttachRequest(link, termini)
    client.steal(request.name, publishes=request.publishes)
    try:
        await _set_up(client, request, await _setup_of(client, request))
    except Refused as refused:
        client.log.warning(
            "attach_refused",
            **{
                log_keys.LINK: request.name,
                log_keys.ADDRESS: request.address,
                log_keys.CONDITION: refused.code.condition,
                log_keys.REPLAY_ERROR: refused.code.replay_error,
                log_keys.RULE: rule_of(refused),
                log_keys.REASON: refused.text,
            },
        )
        if _is_gone(client, request):
            return
        if refused.code is ErrorCode.REDIRECT:
            client.redirect(refused)
        else:
            refuse(link, refused)


async def _setup_of(client: Client, request: AttachRequest) -> LinkSetup:
    """How the link is set up, by the kind of its source or target."""
    if not request.name:
        # Mandatory (AMQP 1.0 section 2.7.3); a durable subscription is named by it.
        raise Refused(ErrorCode.INVALID_FIELD, "an attach needs a name for its link")
    bad = request.termini.bad
    if bad is not None:
        raise Refused(code_of(bad.condition), bad.text, field=Symbol(bad.field))
    address = request.address or ""
    if address and request.is_dynamic:
        # Sections 3.5.3 and 3.5.4: it could mean either.
        raise Refused(
            ErrorCode.INVALID_FIELD, "a dynamic node has no address before it is made; leave one of both out"
        )
    served = client.spoken.nodes.get(without_host(address))
    if client.token_check is not None:
        # What names an entity is looked at once it is read: in another spelling it is the same, or another.
        names_none = not address or request.is_dynamic or request.is_for_coordinator
        if names_none if served is None else not served.looks_at_tokens:
            client.token_check.require_all()
    if request.publishes or request.is_for_coordinator or served is not None:
        client.require_active()
    if served is not None:
        return RequestNodeTerminus(client, request, served)
    if request.is_for_coordinator:
        return CoordinatorTarget(client, request)
    if request.publishes:
        return PublisherTarget(client, request)
    return await source_setup(client, request)


async def _set_up(client: Client, request: AttachRequest, setup: LinkSetup) -> None:
    """
    Take a setup's steps.

    Raises:
        Refused: One of them did.
    """
    link, attached = request.link, None
    is_registered = False
    try:
        await setup.prepare()
        if not _is_gone(client, request):
            attached = await setup.bind()
        elif request.is_closed:
            setup.closed_early()
        if attached is not None and not _is_gone(client, request):
            setup.reply()
            client.carrier.links.register(attached)
            is_registered = True
    finally:
        # Refused, or the link or its connection did not wait for the answer.
        if not is_registered:
            setup.release()
    if attached is None or not is_registered:
        return
    name = client.carrier.links.name_of(link)
    client.attached(attached, name, publishes=request.publishes)
    link.open()
    setup.opened()
    values = setup.log_values()
    if values is not None:
        client.log.info("link_attached", **{log_keys.LINK: name, **values})
    attached.ready()


def _is_gone(client: Client, request: AttachRequest) -> bool:
    """Whether the peer has left while we were busy for it."""
    return not (client.is_connected and client.carrier.links.is_known(request.link))


def refuse(link: Link, refused: Refused) -> None:
    """Answer an attach with a refusal."""
    if link.is_receiver:
        link.source.copy(link.remote_source)
        link.target.type = Terminus.UNSPECIFIED
    else:
        link.source.type = Terminus.UNSPECIFIED
        link.target.copy(link.remote_target)
    link.open()
    link.condition = condition_of(refused, room_of(link))
    link.close()
