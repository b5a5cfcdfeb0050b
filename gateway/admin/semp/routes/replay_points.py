"""Config of replay points: named places in the log."""

from typing import Final

from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field

from amqp_ext.replay_id import format_replay_id
from amqp_ext.replay_start import parse_text
from gateway.admin import rights
from gateway.admin.lazy_route import LazyRoute
from gateway.admin.semp.documented import InVpn, done, listed, one, resource
from gateway.admin.semp.envelope import Answer, answer, list_answer
from gateway.admin.semp.paging import Pages
from gateway.admin.semp.resources import Name, vpn_of
from gateway.admin.semp.tree import Tree
from gateway.core.model import Point
from gateway.vpn.administration import Administration


class NewPoint(BaseModel):
    """A place in the log that is given a name."""

    model_config = ConfigDict(extra="forbid", strict=True)

    replayPointName: str
    start: str = Field("live", description="The place, as a replay start says one; `live` is now.")


class _Point(InVpn):
    replayPointName: str
    msgId: int
    replicationGroupMsgId: str
    timeMs: int | None
    createdTimeMs: int
    trimmed: bool


POINT: Final = resource("ReplayPoint", _Point)


def _point(administration: Administration, point: Point) -> _Point:
    broker = administration.vpn.broker
    return {
        "msgVpnName": administration.vpn.name,
        "replayPointName": point.name,
        "msgId": point.position,
        "replicationGroupMsgId": format_replay_id(broker.log.generation, point.position),
        "timeMs": point.time_ms,
        "createdTimeMs": point.made_ms,
        "trimmed": broker.points.is_trimmed(point),
    }


def point_routes() -> list[LazyRoute]:
    """``/config/msgVpns/{vpn}/replayPoints``."""
    tree = Tree("config", "/msgVpns")
    path = "/{vpn}/replayPoints"

    @tree.get(path, rights.WHOLE_VPN, summary="Ours: named places in the log", responses=listed(POINT))
    async def points(request: Request, vpn: Name, paging: Pages) -> Answer:
        administration = vpn_of(request, vpn)
        found = administration.vpn.broker.points
        page, cursor = await paging.page(
            list(found), lambda name: _point(administration, found[name]) if name in found else None
        )
        return list_answer(request, page, cursor, len(found))

    @tree.post(path, rights.WHOLE_VPN, summary="Name a place in the log", responses=one(POINT))
    async def create(request: Request, vpn: Name, body: NewPoint) -> Answer:
        administration = vpn_of(request, vpn)
        point = await administration.vpn.log.create_point(body.replayPointName, parse_text(body.start))
        return answer(request, _point(administration, point))

    @tree.delete(path + "/{name}", rights.WHOLE_VPN, summary="Take a name away", responses=done)
    async def delete(request: Request, vpn: Name, name: Name) -> Answer:
        await vpn_of(request, vpn).vpn.log.delete_point(name)
        return answer(request)

    return tree.routes
