"""Config of queues and topic endpoints, and of their subscriptions."""

from typing import Annotated, Any, Final

from fastapi import Request
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from amqp_ext.topics import TopicPattern
from gateway.admin import rights
from gateway.admin.lazy_route import LazyRoute
from gateway.admin.semp.documented import InVpn, done, listed, one, resource
from gateway.admin.semp.endpoint_attributes import (
    QUEUE,
    TOPIC_ENDPOINT,
    EndpointBody,
    NewQueue,
    NewTopicEndpoint,
    TopicEndpointBody,
    configured,
)
from gateway.admin.semp.envelope import Answer, answer, list_answer
from gateway.admin.semp.paging import Pages
from gateway.admin.semp.resources import QUEUES, TOPIC_ENDPOINTS, Name, endpoint_of, resources_of, vpn_of
from gateway.admin.semp.tree import Tree
from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.endpoint.settings import EndpointKind, EndpointSettings, Exclusivity

CHANGE: Final = "Change what is named; what lies on it stays"


def _topic(text: str) -> str:
    TopicPattern.parse(text)
    return text


class NewSubscription(BaseModel):
    """A topic subscription; `!` in front makes an exception of it."""

    model_config = ConfigDict(extra="forbid", strict=True)

    subscriptionTopic: Annotated[str, AfterValidator(_topic)] = Field(
        description="Such as `a/*/c`, `a/>`, `!a/b`."
    )


class _OfQueue(TypedDict):
    queueName: str


SUBSCRIPTION: Final = resource("Subscription", InVpn, _OfQueue, NewSubscription)


def _subscription(endpoint: Endpoint, vpn: str, topic: str) -> dict[str, Any]:
    return {"msgVpnName": vpn, "queueName": endpoint.name, "subscriptionTopic": topic}


def config_routes() -> list[LazyRoute]:
    """``/config/msgVpns/{vpn}/queues`` and ``…/topicEndpoints``."""
    tree = Tree("config", "/msgVpns/{vpn}")
    for collection, kinds, shown, right in (
        ("queues", QUEUES, QUEUE, rights.QUEUE),
        ("topicEndpoints", TOPIC_ENDPOINTS, TOPIC_ENDPOINT, rights.TOPIC_ENDPOINT),
    ):
        _add_common(tree, collection, kinds, shown, right)

    @tree.post("/queues", rights.NEW_QUEUE, summary="Make a queue or a stream", responses=one(QUEUE))
    async def create_queue(request: Request, vpn: Name, body: NewQueue) -> Answer:
        administration = vpn_of(request, vpn)
        settings = body.settings(EndpointSettings())
        endpoint = await administration.create(body.queueName, EndpointKind(body.kind), settings)
        return answer(request, configured(endpoint, vpn))

    @tree.post(
        "/topicEndpoints",
        rights.NEW_TOPIC_ENDPOINT,
        summary="Make a durable topic endpoint",
        responses=one(TOPIC_ENDPOINT),
    )
    async def create_topic_endpoint(request: Request, vpn: Name, body: NewTopicEndpoint) -> Answer:
        endpoint = await vpn_of(request, vpn).create(
            body.topicEndpointName,
            EndpointKind.TOPIC_ENDPOINT,
            # As at Solace, for one consumer unless it says otherwise: for many it is a shared subscription.
            body.settings(EndpointSettings(exclusive=Exclusivity.REFUSE)),
            [body.topic],
        )
        return answer(request, configured(endpoint, vpn))

    @tree.patch("/queues/{name}", rights.CHANGED_QUEUE, summary=CHANGE, responses=one(QUEUE))
    async def change_queue(request: Request, vpn: Name, name: Name, body: EndpointBody) -> Answer:
        administration = vpn_of(request, vpn)
        endpoint = endpoint_of(administration, name, QUEUES)
        await administration.change(endpoint, body.settings(endpoint.settings))
        return answer(request, configured(endpoint, vpn))

    @tree.patch(
        "/topicEndpoints/{name}", rights.CHANGED_TOPIC_ENDPOINT, summary=CHANGE, responses=one(TOPIC_ENDPOINT)
    )
    async def change_topic_endpoint(
        request: Request, vpn: Name, name: Name, body: TopicEndpointBody
    ) -> Answer:
        administration = vpn_of(request, vpn)
        endpoint = endpoint_of(administration, name, TOPIC_ENDPOINTS)
        if body.topic is not None and [body.topic] != list(endpoint.subscriptions):
            await administration.change_topic(endpoint, body.topic)
        await administration.change(endpoint, body.settings(endpoint.settings))
        return answer(request, configured(endpoint, vpn))

    @tree.get(
        "/queues/{name}/subscriptions",
        rights.QUEUE,
        summary="Topic subscriptions of a queue",
        responses=listed(SUBSCRIPTION),
    )
    async def subscriptions(request: Request, vpn: Name, name: Name, paging: Pages) -> Answer:
        endpoint = endpoint_of(vpn_of(request, vpn), name, QUEUES)
        page, cursor = await paging.page(
            endpoint.subscriptions, lambda topic: _subscription(endpoint, vpn, topic)
        )
        return list_answer(request, page, cursor, len(endpoint.subscriptions))

    @tree.post(
        "/queues/{name}/subscriptions",
        rights.SUBSCRIBED_QUEUE,
        summary="Add a topic subscription or an exception",
        responses=one(SUBSCRIPTION),
    )
    async def subscribe(request: Request, vpn: Name, name: Name, body: NewSubscription) -> Answer:
        administration = vpn_of(request, vpn)
        endpoint = endpoint_of(administration, name, QUEUES)
        await administration.subscribe(endpoint, body.subscriptionTopic)
        return answer(request, _subscription(endpoint, vpn, body.subscriptionTopic))

    @tree.delete(
        "/queues/{name}/subscriptions/{topic}",
        rights.UNSUBSCRIBED_QUEUE,
        summary="Take a topic subscription away",
        responses=done,
    )
    async def unsubscribe(request: Request, vpn: Name, name: Name, topic: Name) -> Answer:
        administration = vpn_of(request, vpn)
        await administration.unsubscribe(endpoint_of(administration, name, QUEUES), topic)
        return answer(request)

    return tree.routes


def _add_common(
    tree: Tree, collection: str, kinds: tuple[EndpointKind, ...], shown: type, right: rights.Right
) -> None:
    """What both kinds of endpoint have: list, show, delete."""

    @tree.get(f"/{collection}", rights.WHOLE_VPN, summary=f"All {collection}", responses=listed(shown))
    async def all_of(request: Request, vpn: Name, paging: Pages) -> Answer:
        broker = vpn_of(request, vpn).vpn.broker

        def show(name: str) -> dict[str, Any] | None:
            endpoint = broker.find(name)
            return None if endpoint is None else configured(endpoint, vpn)

        async with resources_of(request).listing.page():
            names = [name for name, endpoint in broker.endpoints.items() if endpoint.kind in kinds]
            page, cursor = await paging.page(names, show)
        return list_answer(request, page, cursor, len(names))

    @tree.get(f"/{collection}/{{name}}", right, summary=f"One of the {collection}", responses=one(shown))
    async def one_of(request: Request, vpn: Name, name: Name, paging: Pages) -> Answer:
        endpoint = endpoint_of(vpn_of(request, vpn), name, kinds)
        return answer(request, paging.shown(configured(endpoint, vpn)))

    @tree.delete(f"/{collection}/{{name}}", right, summary="Delete it with what lies on it", responses=done)
    async def delete(request: Request, vpn: Name, name: Name) -> Answer:
        administration = vpn_of(request, vpn)
        await administration.delete(endpoint_of(administration, name, kinds))
        return answer(request)
