"""What lies on queues and topic endpoints: looked at, and left there."""

from typing import Final

from fastapi import Request
from typing_extensions import TypedDict

from gateway.admin import rights
from gateway.admin.lazy_route import LazyRoute
from gateway.admin.semp.documented import listed, one, resource
from gateway.admin.semp.envelope import Answer, SempError, answer, list_answer
from gateway.admin.semp.message_attributes import ListedMessage, listed_message, place_of
from gateway.admin.semp.paging import Pages, encoded
from gateway.admin.semp.resources import QUEUES, TOPIC_ENDPOINTS, Name, endpoint_of, vpn_of
from gateway.admin.semp.routes.messages import WHOLE_MESSAGE, MessageId, whole_message
from gateway.admin.semp.tree import Tree
from gateway.admin.waiting import while_waiting
from gateway.core.endpoint.settings import EndpointKind
from gateway.vpn.log import summary


class _OnEndpoint(TypedDict):
    deliveryCount: int
    isUnacked: bool


ENDPOINT_MESSAGE: Final = resource("EndpointMsg", ListedMessage, _OnEndpoint)


def endpoint_message_routes() -> list[LazyRoute]:
    """``/monitor/msgVpns/{vpn}/queues/{name}/msgs``, and the same of topic endpoints."""
    tree = Tree("monitor", "/msgVpns")
    for collection, kinds, right in (
        ("queues", QUEUES, rights.QUEUE),
        ("topicEndpoints", TOPIC_ENDPOINTS, rights.TOPIC_ENDPOINT),
    ):
        _add_messages(tree, collection, kinds, right)
    return tree.routes


def _add_messages(tree: Tree, collection: str, kinds: tuple[EndpointKind, ...], right: rights.Right) -> None:
    path = f"/{{vpn}}/{collection}/{{name}}/msgs"

    @tree.get(
        path,
        right,
        summary="What lies on it, the oldest first; nothing is consumed",
        responses=listed(ENDPOINT_MESSAGE),
    )
    async def messages(request: Request, vpn: Name, name: Name, paging: Pages) -> Answer:
        administration = vpn_of(request, vpn)
        endpoint = endpoint_of(administration, name, kinds)
        if paging.where:
            raise SempError("INVALID_PARAMETER", "What lies on an endpoint is not chosen from by `where`.")
        running = administration.vpn
        position, _ = place_of(paging.after) or (1, 0)
        found = await while_waiting(request, running.listing.page(endpoint, position, paging.count))
        generation = running.broker.log.generation
        page = [
            paging.shown(
                {
                    **listed_message(summary(message.row), generation),
                    "deliveryCount": message.attempts,
                    "isUnacked": message.is_unsettled,
                }
            )
            for message in found.messages
        ]
        cursor = None if found.position is None else encoded(f"{found.position}:0")
        return list_answer(request, page, cursor, endpoint.depth)

    @tree.get(
        f"{path}/{{message}}",
        right,
        summary="All that one message on it says",
        responses=one(WHOLE_MESSAGE),
    )
    async def one_message(
        request: Request, vpn: Name, name: Name, message: MessageId, paging: Pages
    ) -> Answer:
        administration = vpn_of(request, vpn)
        endpoint = endpoint_of(administration, name, kinds)
        row = await while_waiting(request, administration.vpn.listing.one(endpoint, message))
        if row is None:
            raise SempError("NOT_FOUND", f"Message {message} does not lie on {name!r}.")
        return answer(request, paging.shown(await whole_message(administration, row)))
