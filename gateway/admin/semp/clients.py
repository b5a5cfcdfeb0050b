"""Clients, with what each makes the gateway hold and its links; users, and what each may do."""

from typing import Annotated, Final, Literal

from fastapi import Query, Request
from typing_extensions import TypedDict

from amqp_ext.addresses.address import Address, AddressKind, parse_source, parse_target
from gateway.admin import rights
from gateway.admin.administered_gateway import ClientConnection
from gateway.admin.lazy_route import LazyRoute
from gateway.admin.semp.envelope import Answer, InVpn, SempError, answer, list_answer, listed, one, resource
from gateway.admin.semp.paging import Pages
from gateway.admin.semp.resources import Name, client_id, clients_named, resources_of, vpn_of
from gateway.admin.semp.tree import Tree
from gateway.config.settings import GlobalAccess
from gateway.core.permissions import Action, Decision, ListedDecision
from gateway.ledger import Kind
from gateway.users import Users
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


ActionName = Literal["publish", "consume", "browse", "replay", "administer"]


class _User(TypedDict):
    userName: str
    globalAccess: GlobalAccess


class _Decision(TypedDict):
    userName: str
    msgVpnName: str
    action: ActionName
    address: str
    isAllowed: bool
    rule: str | None
    sentence: str


USER: Final = resource("User", _User)
DECISION: Final = resource("UserDecision", _Decision)


def user_routes() -> list[LazyRoute]:
    """``/monitor/users``."""
    tree = Tree("monitor", "/users")

    @tree.get("", rights.GATEWAY_SEEN, summary="Users that are configured", responses=listed(USER))
    async def users(request: Request, paging: Pages) -> Answer:
        directory = resources_of(request).users

        def show(name: str) -> _User:
            return {"userName": name, "globalAccess": directory.global_access(name)}

        page, cursor = await paging.page(directory.names, show)
        return list_answer(request, page, cursor, len(directory.names))

    @tree.get(
        "/{name}/decision",
        rights.GATEWAY_SEEN,
        summary="Whether a user may do something, and the rule that says so",
        responses=one(DECISION),
    )
    async def decision(
        request: Request,
        name: Name,
        paging: Pages,
        action: Annotated[ActionName, Query(description="What would be done.")],
        address: Annotated[
            str, Query(description="To what, as a client names it: `topic://a/>`.", max_length=1_000)
        ],
        msg_vpn_name: Annotated[
            str, Query(alias="msgVpnName", description="In which Message VPN.", max_length=250)
        ] = "default",
    ) -> Answer:
        resources = resources_of(request)
        directory = resources.users
        if not directory.knows(name):
            raise SempError("NOT_FOUND", f"There is no user {name[:80]!r}.")
        if msg_vpn_name not in (*resources.names, *resources.waiting):
            raise SempError("NOT_FOUND", f"There is no Message VPN {msg_vpn_name[:80]!r}.")
        asked = _asked(Action(action), address)
        found = _decided(directory, name, msg_vpn_name, Action(action), asked)
        shown: _Decision = {
            "userName": name,
            "msgVpnName": msg_vpn_name,
            "action": action,
            "address": address,
            "isAllowed": found.is_allowed,
            "rule": found.rule if isinstance(found, ListedDecision) else None,
            "sentence": f"{name} may{'' if found.is_allowed else ' not'} {action} {asked.kind.value}://{asked.name}: "
            f"{found.rule}.",
        }
        return answer(request, paging.shown(shown))

    return tree.routes


def _asked(action: Action, address: str) -> Address:
    """
    What an address names.

    Raises:
        amqp_ext.addresses.forms.AddressError: It names nothing here.
        SempError: INVALID_PARAMETER, nobody has rules for such.
    """
    asked = parse_target(address) if action is Action.PUBLISH else parse_source(address)
    if asked.kind not in (AddressKind.QUEUE, AddressKind.TOPIC, AddressKind.LOG):
        raise SempError(
            "INVALID_PARAMETER",
            "Rules are for queues, topics and the log: queue://NAME, topic://PATTERN, log://PATTERN.",
        )
    return asked


def _decided(users: Users, name: str, vpn: str, action: Action, asked: Address) -> Decision:
    if not users.may_enter(name, vpn):
        return Decision(False, f"the user may not use the Message VPN {vpn!r}")
    return users.permissions(name).decide(action, asked.kind, asked.name)
