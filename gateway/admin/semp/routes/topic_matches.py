"""Who would get a message of a topic."""

from typing import Annotated, Any, Final, Literal

from fastapi import Query, Request
from typing_extensions import TypedDict

from amqp_ext.addresses.queue_names import queue_topic
from amqp_ext.topics import TopicPattern
from gateway.admin import rights
from gateway.admin.lazy_route import LazyRoute
from gateway.admin.semp.documented import listed, resource
from gateway.admin.semp.envelope import Answer, list_answer
from gateway.admin.semp.paging import Pages
from gateway.admin.semp.resources import Name, vpn_of
from gateway.admin.semp.tree import Tree
from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.endpoint.settings import EndpointKind

_Kind: Any = Literal[tuple(kind.value for kind in EndpointKind)]


class _Match(TypedDict):
    endpointName: str
    endpointType: _Kind
    subscriptionTopic: str


MATCH: Final = resource("TopicMatch", _Match)


def topic_match_routes() -> list[LazyRoute]:
    """``/monitor/msgVpns/{vpn}/topicMatches``."""
    tree = Tree("monitor", "/msgVpns")

    @tree.get(
        "/{vpn}/topicMatches",
        rights.WHOLE_VPN,
        summary="Endpoints that get what is published to a topic, with the subscription that says so",
        responses=listed(MATCH),
    )
    async def matches(
        request: Request,
        vpn: Name,
        paging: Pages,
        topic: Annotated[str, Query(description="As a publisher names it.", max_length=1_000)],
    ) -> Answer:
        running = vpn_of(request, vpn).vpn
        running.publishing.check_topic(topic)
        found = {endpoint.name: endpoint for endpoint in running.broker.router.subscribers(topic)}

        def show(name: str) -> _Match:
            endpoint = found[name]
            return {
                "endpointName": name,
                "endpointType": endpoint.kind.value,
                "subscriptionTopic": _subscription(endpoint, topic),
            }

        page, cursor = await paging.page(found, show)
        return list_answer(request, page, cursor, len(found))

    return tree.routes


def _subscription(endpoint: Endpoint, topic: str) -> str:
    """The one of an endpoint's that a topic matches; of a queue that has none such, its own name's."""
    for text in endpoint.subscriptions:
        if not text.startswith("!") and TopicPattern.parse(text).matches(topic):
            return text
    return queue_topic(endpoint.name)
