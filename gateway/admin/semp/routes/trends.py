"""What went on in the last hour: rates, refusals, and how deep endpoints were."""

from typing import Final

from fastapi import Request
from typing_extensions import TypedDict

from gateway.admin import rights
from gateway.admin.lazy_route import LazyRoute
from gateway.admin.semp.documented import InVpn, listed, one, resource
from gateway.admin.semp.envelope import Answer, answer, list_answer
from gateway.admin.semp.paging import Pages
from gateway.admin.semp.resources import QUEUES, TOPIC_ENDPOINTS, Name, endpoint_of, vpn_of
from gateway.admin.semp.tree import Tree
from gateway.core.endpoint.settings import EndpointKind
from gateway.vpn.runtime import REFUSALS


class _Sampled(InVpn):
    intervalMs: int
    untilTimeMs: int


class _Rates(_Sampled):
    publishedMsgs: list[int]
    publishedBytes: list[int]
    settledMsgs: list[int]
    refusals: list[int]


class _Depths(_Sampled):
    msgCounts: list[int]


class _Refusal(TypedDict):
    reason: str
    count: int


RATES: Final = resource("MsgVpnRates", _Rates)
DEPTHS: Final = resource("EndpointDepths", _Depths)
REFUSAL: Final = resource("Refusal", _Refusal)


def trend_routes() -> list[LazyRoute]:
    """``/monitor/msgVpns/{vpn}/rates``, ``…/refusals``, and ``…/depths`` of endpoints."""
    tree = Tree("monitor", "/msgVpns")

    @tree.get(
        "/{vpn}/rates",
        rights.WHOLE_VPN,
        summary="What was published, settled and refused in each interval of the last hour, the oldest first; "
        "refusals are of the whole gateway",
        responses=one(RATES),
    )
    async def rates(request: Request, vpn: Name, paging: Pages) -> Answer:
        found = vpn_of(request, vpn).vpn.rates
        shown: _Rates = {
            "msgVpnName": vpn,
            "intervalMs": found.sampler.interval_ms,
            "untilTimeMs": found.sampler.until_ms,
            "publishedMsgs": found.counts("publishedMsgs"),
            "publishedBytes": found.counts("publishedBytes"),
            "settledMsgs": found.counts("settledMsgs"),
            "refusals": found.counts("refusals"),
        }
        return answer(request, paging.shown(shown))

    @tree.get(
        "/{vpn}/refusals",
        rights.WHOLE_VPN,
        summary="What clients were refused since the start, by AMQP condition; of the whole gateway",
        responses=listed(REFUSAL),
    )
    async def refusals(request: Request, vpn: Name, paging: Pages) -> Answer:
        vpn_of(request, vpn)
        counts = dict(REFUSALS)

        def show(reason: str) -> _Refusal:
            return {"reason": reason, "count": counts[reason]}

        page, cursor = await paging.page(counts, show)
        return list_answer(request, page, cursor, len(counts))

    for collection, kinds, right in (
        ("queues", QUEUES, rights.QUEUE),
        ("topicEndpoints", TOPIC_ENDPOINTS, rights.TOPIC_ENDPOINT),
    ):
        _add_depths(tree, collection, kinds, right)

    return tree.routes


def _add_depths(tree: Tree, collection: str, kinds: tuple[EndpointKind, ...], right: rights.Right) -> None:
    @tree.get(
        f"/{{vpn}}/{collection}/{{name}}/depths",
        right,
        summary="How many messages lay on it, minute by minute of the last hour, the oldest first",
        responses=one(DEPTHS),
    )
    async def depths(request: Request, vpn: Name, name: Name, paging: Pages) -> Answer:
        administration = vpn_of(request, vpn)
        endpoint = endpoint_of(administration, name, kinds)
        found = administration.vpn.depths
        shown: _Depths = {
            "msgVpnName": vpn,
            "intervalMs": found.sampler.interval_ms,
            "untilTimeMs": found.sampler.until_ms,
            "msgCounts": found.counts(endpoint.name),
        }
        return answer(request, paging.shown(shown))
