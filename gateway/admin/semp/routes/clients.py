"""Clients: who is connected, what each makes the gateway hold, and its links."""

from typing import Final, Literal

from fastapi import Request
from typing_extensions import TypedDict

from gateway.admin import rights
from gateway.admin.administered_gateway import ClientConnection
from gateway.admin.lazy_route import LazyRoute
from gateway.admin.semp.documented import InVpn, listed, resource
from gateway.admin.semp.envelope import Answer, list_answer
from gateway.admin.semp.paging import Pages
from gateway.admin.semp.resources import Name, client_id, clients_named, resources_of, vpn_of
from gateway.admin.semp.tree import Tree
from gateway.ledger import Kind
from gateway.vpn.clients import LinkState


class _Client(InVpn):
    clientName: str
    clientId: str
    clientUsername: str
    clientAddress: str
    linkCount: int
    heldBytes: int
    heldUnfinishedBytes: int
    heldTransactionBytes: int
    heldUnsettledBytes: int
    heldLinkBytes: int
    heldWebSocketBytes: int


class _Link(TypedDict):
    clientId: str
    linkName: str
    role: Literal["receiver", "sender"]
    address: str
    kind: str
    credit: int
    unackedMsgCount: int
    sentMsgCount: int


CLIENT: Final = resource("Client", _Client)
LINK: Final = resource("ClientLink", _Link)


def client_routes() -> list[LazyRoute]:
    """``/monitor/msgVpns/{vpn}/clients``."""
    tree = Tree("monitor", "/msgVpns")

    @tree.get("/{vpn}/clients", rights.WHOLE_VPN, summary="Clients, by connection", responses=listed(CLIENT))
    async def clients(request: Request, vpn: Name, paging: Pages) -> Answer:
        vpn_of(request, vpn)
        found = {f"{client.number:012}": client for client in resources_of(request).clients(vpn)}
        async with resources_of(request).listing.page():
            page, cursor = await paging.page(found, lambda key: _client(found[key], vpn))
        return list_answer(request, page, cursor, len(found))

    @tree.get(
        "/{vpn}/clients/{client}/links",
        rights.WHOLE_VPN,
        summary="Links of a client, by its id or its name: what each is for, its credit, and what came over it",
        responses=listed(LINK),
    )
    async def links(request: Request, vpn: Name, client: Name, paging: Pages) -> Answer:
        found = {
            f"{one.number:012}-{index:06}": (one, link)
            for one in clients_named(request, vpn, client)
            for index, link in enumerate(one.links.attached)
        }

        def show(key: str) -> _Link:
            one, link = found[key]
            return _link(client_id(one), link.state())

        async with resources_of(request).listing.page():
            page, cursor = await paging.page(found, show)
        return list_answer(request, page, cursor, len(found))

    return tree.routes


def _client(client: ClientConnection, vpn: str) -> _Client:
    held = client.account.held
    return {
        "msgVpnName": vpn,
        "clientName": client.peer_container,
        "clientId": client_id(client),
        "clientUsername": client.user,
        "clientAddress": client.peer,
        "linkCount": len(client.links.attached),
        "heldBytes": client.account.held_bytes,
        "heldUnfinishedBytes": held[Kind.UNFINISHED],
        "heldTransactionBytes": held[Kind.TRANSACTIONS],
        "heldUnsettledBytes": held[Kind.UNSETTLED],
        "heldLinkBytes": held[Kind.LINKS],
        "heldWebSocketBytes": held[Kind.WEBSOCKET],
    }


def _link(client: str, link: LinkState) -> _Link:
    return {
        "clientId": client,
        "linkName": link.name,
        "role": "sender" if link.is_sender else "receiver",
        "address": link.address,
        "kind": link.kind,
        "credit": link.credit,
        "unackedMsgCount": link.unsettled,
        "sentMsgCount": link.sent,
    }
