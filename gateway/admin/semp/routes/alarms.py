"""Alarms in the monitor tree: what an administrator should know of now."""

from typing import Final

from fastapi import Request

from gateway.admin import rights
from gateway.admin.lazy_route import LazyRoute
from gateway.admin.semp.documented import InVpn, listed, resource
from gateway.admin.semp.envelope import Answer, list_answer
from gateway.admin.semp.paging import Pages
from gateway.admin.semp.resources import Name, resources_of, vpn_of
from gateway.admin.semp.tree import Tree
from gateway.core.alarms import Alarm, AlarmKind


class _Alarm(InVpn):
    alarm: str
    endpointName: str
    thresholdPercent: int
    raisedTime: int
    description: str


ALARM: Final = resource("Alarm", _Alarm)


def alarm_routes() -> list[LazyRoute]:
    """``/monitor/msgVpns/{vpn}/alarms``."""
    tree = Tree("monitor", "/msgVpns")

    @tree.get(
        "/{vpn}/alarms", rights.WHOLE_VPN, summary="Ours: alarms that hold now", responses=listed(ALARM)
    )
    async def alarms(request: Request, vpn: Name, paging: Pages) -> Answer:
        waiting = resources_of(request).waiting.get(vpn)
        active = waiting.alarms if waiting is not None else vpn_of(request, vpn).vpn.alarms.active()
        found = {_key(alarm): alarm for alarm in active}
        page, cursor = await paging.page(found, lambda key: _alarm(found[key], vpn))
        return list_answer(request, page, cursor, len(found))

    return tree.routes


def _key(alarm: Alarm) -> str:
    return f"{alarm.kind.value} {alarm.threshold_percent:03} {alarm.subject}"


def _alarm(alarm: Alarm, vpn: str) -> _Alarm:
    return {
        "msgVpnName": vpn,
        "alarm": alarm.kind.value,
        "endpointName": "" if alarm.kind is AlarmKind.RETENTION_USE else alarm.subject,
        "thresholdPercent": alarm.threshold_percent,
        "raisedTime": alarm.raised_ms // 1_000,
        "description": alarm.text,
    }
