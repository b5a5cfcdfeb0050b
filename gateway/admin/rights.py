"""What a request needs to be permitted: the rights, of which each operation declares one where its route is declared.

A right is a rule of the user's ``administer`` list that covers what the operation is about. A queue is covered by a
rule for its name, a topic endpoint by rules for its topics; all that is of the whole Message VPN (its log, its clients,
its points, lists) and of the gateway by ``log://>``.

Invariant: no operation is permitted by silence. A route without a right cannot be declared (``tree.Tree``).
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeAlias

from fastapi import Body, Depends, Request
from fastapi.routing import APIRoute

from amqp_ext.addresses.address import AddressKind
from gateway.admin.administrators import Administrator, administrator_of
from gateway.admin.semp.resources import Name, resources_of
from gateway.core.endpoint.settings import EndpointKind

_Administrator: TypeAlias = Annotated[Administrator, Depends(administrator_of)]

_Unchecked: TypeAlias = Annotated[Any, Body()]
"""The body as it came: who may not administer is told so before what is wrong with the request."""


@dataclass(frozen=True, slots=True)
class Right:
    """What must be permitted for an operation.

    Attributes:
        demands: What a rule of the user has to cover, for the documents.
        check: Depends on the parts of the request that it is about; refuses where it is not permitted.
    """

    demands: str
    check: Callable[..., Awaitable[None]]


async def _whole_vpn(administrator: _Administrator) -> None:
    administrator.require(AddressKind.LOG, ">")


async def _queue(administrator: _Administrator, name: Name) -> None:
    administrator.require(AddressKind.QUEUE, name)


async def _new_queue(administrator: _Administrator, body: _Unchecked = None) -> None:
    if isinstance(body, dict):
        administrator.require(AddressKind.QUEUE, str(body.get("queueName", "")))
    else:
        await _whole_vpn(administrator)


async def _topic_endpoint(request: Request, administrator: _Administrator, vpn: Name, name: Name) -> None:
    await _require_topics(request, administrator, vpn, name, [])


async def _changed_topic_endpoint(
    request: Request, administrator: _Administrator, vpn: Name, name: Name, body: _Unchecked = None
) -> None:
    topic = body.get("topic") if isinstance(body, dict) else None
    await _require_topics(request, administrator, vpn, name, [str(topic)] if topic else [])


async def _require_topics(
    request: Request, administrator: Administrator, vpn: str, name: str, more: list[str]
) -> None:
    if administrator.is_anyone:
        return  # and what is not there is said by the operation, after what is wrong with the request
    found = resources_of(request).administration(vpn).vpn.endpoints.find(name)
    topics: list[str] = []
    if found is not None and found.kind is EndpointKind.TOPIC_ENDPOINT:
        topics = [*(topic for topic in found.subscriptions if not topic.startswith("!")), *more]
    for topic in topics:
        administrator.require(AddressKind.TOPIC, topic)
    if not topics:
        await _whole_vpn(administrator)


WHOLE_VPN: Final = Right("`log://>`", _whole_vpn)
QUEUE: Final = Right("`queue://{name}`", _queue)
NEW_QUEUE: Final = Right("`queue://{queueName}`", _new_queue)
TOPIC_ENDPOINT: Final = Right("`topic://` of its topics", _topic_endpoint)
CHANGED_TOPIC_ENDPOINT: Final = Right(
    "`topic://` of its topics and of the new one",
    _changed_topic_endpoint,
)

RIGHTS: Final = (WHOLE_VPN, QUEUE, NEW_QUEUE, TOPIC_ENDPOINT, CHANGED_TOPIC_ENDPOINT)
"""All there are."""


def right_of(route: APIRoute) -> Right | None:
    """The right that a route declares; None for one that is open to everybody."""
    checks = [depends.dependency for depends in route.dependencies]
    return next((right for right in RIGHTS if right.check in checks), None)


def needs(right: Right) -> Any:
    """The right as FastAPI takes it, for the ``dependencies`` of a route."""
    return Depends(right.check)
