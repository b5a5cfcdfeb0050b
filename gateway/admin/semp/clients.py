"""Clients, with their links and the bytes that each makes the gateway hold; users, and what each may do."""

from typing import Annotated, Final, Literal

from fastapi import Depends, Query, Request
from typing_extensions import TypedDict

from amqp_ext.addresses.address import Address, AddressKind, parse_source, parse_target
from gateway.admin import rights
from gateway.admin.operations import Tree
from gateway.admin.semp.envelope import Attributes, Body, InVpn, ListAnswer, SempError, Shown, resource
from gateway.admin.semp.paging import Pages
from gateway.admin.semp.resources import Name, OfVpn, resources_of
from gateway.config.settings import GlobalAccess
from gateway.core.errors import ErrorCode, Refused
from gateway.core.permissions import Action, Decision, ListedDecision
from gateway.ledger import Kind
from gateway.vpn.clients import ClientConnection, ClientIdentity, LinkState

# --- clients ----------------------------------------------------------------------------------------------------


class Nothing(Body):
    """The body of an action that has no attributes."""


def client_id(client: ClientIdentity) -> str:
    """An id that tells a client from others of the same name; unique while the gateway runs."""
    return f"#{client.number}"


_CLIENT: Final = Shown[ClientConnection](
    {
        "clientName": (str, lambda client: client.identity.peer_container),
        "clientId": (str, lambda client: client_id(client.identity)),
        "clientUsername": (str, lambda client: client.identity.user),
        "clientAddress": (str, lambda client: client.identity.peer),
        "linkCount": (int, lambda client: len(client.link_states())),
        "heldBytes": (int, lambda client: client.account.held_bytes),
        "heldUnfinishedBytes": (int, lambda client: client.account.held[Kind.UNFINISHED]),
        "heldTransactionBytes": (int, lambda client: client.account.held[Kind.TRANSACTIONS]),
        "heldUnsettledBytes": (int, lambda client: client.account.held[Kind.UNSETTLED]),
        "heldLinkBytes": (int, lambda client: client.account.held[Kind.LINKS]),
        "heldWebSocketBytes": (int, lambda client: client.account.held[Kind.WEBSOCKET]),
        "heldPageBytes": (int, lambda client: client.account.held[Kind.PAGES]),
    }
)
_LINK: Final = Shown[LinkState](
    {
        "linkName": (str, lambda link: link.name),
        "role": (Literal["receiver", "sender"], lambda link: "sender" if link.is_sender else "receiver"),
        "address": (str, lambda link: link.address),
        "kind": (str, lambda link: link.kind),
        "credit": (int, lambda link: link.credit),
        "unackedMsgCount": (int, lambda link: link.unsettled),
        "sentMsgCount": (int, lambda link: link.sent),
    }
)
CLIENT: Final = resource("Client", InVpn, _CLIENT)
LINK: Final = resource("ClientLink", _LINK, clientId=str)
DISCONNECTED: Final = resource("Disconnected", disconnectedCount=int)

_MONITOR = Tree("monitor")
_ACTION = Tree("action")


@_MONITOR.list("/clients", rights.WHOLE_VPN, CLIENT)
async def clients(request: Request, administration: OfVpn, paging: Pages) -> ListAnswer:
    """Connected clients, one for each connection."""
    vpn = administration.vpn.name
    found = {f"{client.identity.number:012}": client for client in resources_of(request).clients(vpn)}
    async with resources_of(request).listing.page():
        return await paging.answer(found, lambda key: {"msgVpnName": vpn, **_CLIENT.of(found[key])})


async def _named(request: Request, administration: OfVpn, client: Name) -> list[ClientConnection]:
    """
    The clients of a Message VPN that have this name, or this id (``client_id``).

    Raises:
        SempError: NOT_FOUND, no client has it.
    """
    vpn = administration.vpn.name
    connected = resources_of(request).clients(vpn)
    found = [one for one in connected if client in (one.identity.peer_container, client_id(one.identity))]
    if not found:
        raise SempError("NOT_FOUND", f"There is no client {client[:80]!r} in Message VPN {vpn!r}.")
    return found


_Named = Annotated[list[ClientConnection], Depends(_named)]


@_MONITOR.list("/clients/{client}/links", rights.WHOLE_VPN, LINK)
async def links(request: Request, named: _Named, paging: Pages) -> ListAnswer:
    """The links of a client, by its id or name: address, credit and message counts of each."""
    found = {
        f"{one.identity.number:012}-{index:06}": {"clientId": client_id(one.identity), **_LINK.of(link)}
        for one in named
        for index, link in enumerate(one.link_states())
    }

    async with resources_of(request).listing.page():
        return await paging.answer(found, found.get)


@_ACTION.put("/clients/{client}/disconnect", rights.WHOLE_VPN, DISCONNECTED)
async def disconnect(named: _Named, body: Nothing | None = None) -> Attributes:
    """Close a client's connections."""
    for connection in named:
        connection.stop(Refused(ErrorCode.CONNECTION_FORCED, "disconnected by an administrator"))
    return {"disconnectedCount": len(named)}


# --- users ------------------------------------------------------------------------------------------------------

ActionName = Literal["publish", "consume", "browse", "replay", "administer"]


class _Decision(TypedDict):
    userName: str
    msgVpnName: str
    action: ActionName
    address: str
    isAllowed: bool
    rule: str | None
    sentence: str


USER: Final = resource("User", userName=str, globalAccess=GlobalAccess)
DECISION: Final = resource("UserDecision", _Decision)

_USERS = Tree("monitor", "/users")


@_USERS.list("", rights.GATEWAY_SEEN, USER)
async def users(request: Request, paging: Pages) -> ListAnswer:
    """The configured users."""
    directory = resources_of(request).gateway.users

    def show(name: str) -> dict[str, str]:
        return {"userName": name, "globalAccess": directory.global_access(name)}

    return await paging.answer(directory.names, show)


@_USERS.get("/{name}/decision", rights.GATEWAY_SEEN, DECISION)
async def decision(
    request: Request,
    name: Name,
    action: Annotated[ActionName, Query(description="What the user would do.")],
    address: Annotated[
        str, Query(description="The address, as a client names it: `topic://a/>`.", max_length=1_000)
    ],
    msg_vpn_name: Annotated[
        str, Query(alias="msgVpnName", description="The Message VPN.", max_length=250)
    ] = "default",
) -> Attributes:
    """Whether a user may do something, and the rule that decides it."""
    resources = resources_of(request)
    directory = resources.gateway.users
    if not directory.knows(name):
        raise SempError("NOT_FOUND", f"There is no user {name[:80]!r}.")
    if msg_vpn_name not in (*resources.gateway.vpns, *resources.waiting):
        raise SempError("NOT_FOUND", f"There is no Message VPN {msg_vpn_name[:80]!r}.")
    asked = _asked(Action(action), address)
    found = Decision(False, f"the user may not use the Message VPN {msg_vpn_name!r}")
    if directory.may_enter(name, msg_vpn_name):
        found = directory.permissions(name).decide(Action(action), asked.kind, asked.name)
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
    return shown


def _asked(action: Action, address: str) -> Address:
    """
    Parse an address for a decision.

    Raises:
        amqp_ext.addresses.forms.AddressError: The address is not valid for this action.
        SempError: INVALID_PARAMETER, there are no rules for an address of this kind.
    """
    asked = parse_target(address) if action is Action.PUBLISH else parse_source(address)
    if asked.kind not in (AddressKind.QUEUE, AddressKind.TOPIC, AddressKind.LOG):
        raise SempError(
            "INVALID_PARAMETER",
            "Rules are for queues, topics and the log: queue://NAME, topic://PATTERN, log://PATTERN.",
        )
    return asked


ROUTES: Final = (*_MONITOR.routes, *_ACTION.routes, *_USERS.routes)
