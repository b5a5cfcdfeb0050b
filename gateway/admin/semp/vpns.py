"""Message VPNs: made, changed, deleted, and what goes on in each; the gateway's configuration, shown and read again."""

import asyncio
from functools import partial
from typing import Any, Final, Literal, cast, get_type_hints

from fastapi import Request
from typing_extensions import TypedDict

from gateway.admin import rights
from gateway.admin.operations import Tree
from gateway.admin.semp.envelope import Answer, Body, InVpn, ListAnswer, SempError, answer, resource
from gateway.admin.semp.paging import Pages
from gateway.admin.semp.resources import Name, Resources, resources_of, vpn_of
from gateway.config import ConfigError, effective_toml
from gateway.core.alarms import Alarm, AlarmKind
from gateway.core.replay.states import ReplayState
from gateway.vpn.message_vpn import MessageVpn
from gateway.vpn.role import WaitingVpn
from gateway.vpn.runtime import REFUSALS


class VpnBody(Body):
    """What can change of a Message VPN while it runs."""

    enabled: bool | None = None
    """Off disconnects its clients, and lets none in."""
    createQueuesEnabled: bool | None = None
    """Ours: whether first use makes a queue."""

    def changes(self) -> dict[str, Any]:
        """The same, by the settings' names."""
        named = {"enabled": self.enabled, "create_queues": self.createQueuesEnabled}
        return {key: value for key, value in named.items() if value is not None}


class NewVpn(VpnBody):
    """A Message VPN to be made: enabled, unless it says otherwise."""

    msgVpnName: str
    """1 to 64 characters of A-Z a-z 0-9 . _ -"""


class _State(InVpn):
    enabled: bool
    state: Literal["up", "down", "standby"]
    activeGateway: str | None
    storeEngine: str
    storeProblem: str | None
    storeDurability: Literal["disk", "two-machines", "one-machine"] | None
    storeConfirmedAge: float | None
    wireLoops: str
    clientCount: int
    endpointCount: int
    msgReplayInitializingCount: int
    msgReplayActiveCount: int
    msgReplayPendingCompleteCount: int
    msgReplayFailedCount: int
    lastMsgId: int
    publishedMsgCount: int
    publishedBytes: int
    settledMsgCount: int
    pendingBytes: int
    directDroppedMsgCount: int
    duplicateMsgCount: int


class _Alarm(InVpn):
    alarm: str
    endpointName: str
    thresholdPercent: int
    raisedTime: int
    description: str


class Sampled(InVpn):
    """What every series of the last hour has."""

    intervalMs: int
    untilTimeMs: int


class _Rates(Sampled):
    publishedMsgs: list[int]
    publishedBytes: list[int]
    settledMsgs: list[int]
    refusals: list[int]


class _Refusal(TypedDict):
    reason: str
    count: int


VPN: Final = resource("MsgVpn", NewVpn, maxTopicBytes=int, maxTopicLevels=int)
RELOADED: Final = resource("Reloaded", applied=list[str], refused=list[str])
CONFIGURATION: Final = resource("Configuration", toml=str)
VPN_STATE: Final = resource("MsgVpnState", _State)
ALARM: Final = resource("Alarm", _Alarm)
RATES: Final = resource("MsgVpnRates", _Rates)
REFUSAL: Final = resource("Refusal", _Refusal)

_CONFIG = Tree("config", "/msgVpns")
_MONITOR = Tree("monitor", "/msgVpns")
_GATEWAY_ACTION = Tree("action", "")
_GATEWAY_MONITOR = Tree("monitor", "")

# --- configuration ----------------------------------------------------------------------------------------------


@_CONFIG.list("", rights.GATEWAY_SEEN, VPN)
async def vpns(request: Request, paging: Pages) -> ListAnswer:
    """All Message VPNs."""
    active, waiting = resources_of(request).gateway.vpns, resources_of(request).waiting

    def show(name: str) -> dict[str, Any] | None:
        found = active.get(name) or waiting.get(name)
        return None if found is None else _configured(found)

    return await paging.answer(request, [*active, *waiting], show)


@_CONFIG.post("", rights.GATEWAY_CHANGED, VPN)
async def create(request: Request, body: NewVpn) -> Answer:
    """Make a Message VPN, with a file of its own."""
    vpn = await resources_of(request).gateway.vpns.create(body.msgVpnName, body.changes())
    return answer(request, _configured(vpn))


@_CONFIG.get("/{vpn}", rights.WHOLE_VPN, VPN)
async def one_vpn(request: Request, vpn: Name, paging: Pages) -> Answer:
    """One Message VPN."""
    return answer(request, paging.shown(_configured(vpn_of(request, vpn).vpn)))


@_CONFIG.patch("/{vpn}", rights.WHOLE_VPN, VPN)
async def change(request: Request, vpn: Name, body: VpnBody) -> Answer:
    """Enable, disable or change a Message VPN."""
    running = vpn_of(request, vpn).vpn
    await resources_of(request).gateway.vpns.change(vpn, body.changes())
    return answer(request, _configured(running))


@_CONFIG.delete("/{vpn}", rights.GATEWAY_CHANGED)
async def delete(request: Request, vpn: Name) -> Answer:
    """Delete a Message VPN that is disabled and empty, with its file."""
    vpn_of(request, vpn)
    await resources_of(request).gateway.vpns.delete(vpn)
    return answer(request)


@_GATEWAY_ACTION.put("/reload", rights.GATEWAY_CHANGED, RELOADED)
async def reload(request: Request) -> Answer:
    """Ours: read the configuration file again, and take what can change."""
    try:
        reloaded = await resources_of(request).gateway.reload()
    except ConfigError as error:
        raise SempError("NOT_ALLOWED", "Nothing was changed: " + "; ".join(error.problems) + ".") from None
    return answer(
        request,
        {
            "applied": [str(difference) for difference in reloaded.applied],
            "refused": [str(difference) for difference in reloaded.refused],
        },
    )


@_GATEWAY_MONITOR.get("/configuration", rights.GATEWAY_SEEN, CONFIGURATION)
async def configuration(request: Request, paging: Pages) -> Answer:
    """All settings in force, with what administrators changed; secrets are left out."""
    settings = resources_of(request).gateway.vpns.settings
    # There may be thousands of queues in it.
    toml = await asyncio.get_running_loop().run_in_executor(None, partial(effective_toml, settings))
    return answer(request, paging.shown({"toml": toml}))


def _configured(vpn: MessageVpn | WaitingVpn) -> dict[str, Any]:
    return {
        "msgVpnName": vpn.name,
        "enabled": vpn.settings.enabled,
        "createQueuesEnabled": vpn.settings.create_queues,
        "maxTopicBytes": vpn.settings.max_topic_bytes,
        "maxTopicLevels": vpn.settings.max_topic_levels,
    }


# --- what goes on -----------------------------------------------------------------------------------------------


@_MONITOR.list("", rights.GATEWAY_SEEN, VPN_STATE, name="vpns")
async def vpn_states(request: Request, paging: Pages) -> ListAnswer:
    """All Message VPNs."""
    resources = resources_of(request)
    names = [*resources.gateway.vpns, *resources.waiting]
    return await paging.answer(request, names, lambda name: _state(resources, name))


@_MONITOR.get("/{vpn}", rights.WHOLE_VPN, VPN_STATE, name="one_vpn")
async def vpn_state(request: Request, vpn: Name, paging: Pages) -> Answer:
    """One Message VPN."""
    return answer(request, paging.shown(_state(resources_of(request), vpn)))


@_MONITOR.list("/{vpn}/alarms", rights.WHOLE_VPN, ALARM)
async def alarms(request: Request, vpn: Name, paging: Pages) -> ListAnswer:
    """Ours: alarms that hold now."""
    waiting = resources_of(request).waiting.get(vpn)
    active = waiting.alarms.active() if waiting is not None else vpn_of(request, vpn).vpn.alarms.active()
    found = {
        f"{alarm.kind.value} {alarm.threshold_percent:03} {alarm.subject}": _alarm(alarm, vpn)
        for alarm in active
    }
    return await paging.answer(request, found, found.get)


@_MONITOR.get("/{vpn}/rates", rights.WHOLE_VPN, RATES)
async def rates(request: Request, vpn: Name, paging: Pages) -> Answer:
    """What was published, settled and refused in each interval of the last hour, the oldest first; refusals
    are of the whole gateway.
    """
    found = vpn_of(request, vpn).vpn.rates
    shown: _Rates = {
        "msgVpnName": vpn,
        "intervalMs": found.interval_ms,
        "untilTimeMs": found.until_ms,
        "publishedMsgs": found.counts("publishedMsgs"),
        "publishedBytes": found.counts("publishedBytes"),
        "settledMsgs": found.counts("settledMsgs"),
        "refusals": found.counts("refusals"),
    }
    return answer(request, paging.shown(shown))


@_MONITOR.list("/{vpn}/refusals", rights.WHOLE_VPN, REFUSAL)
async def refusals(request: Request, vpn: Name, paging: Pages) -> ListAnswer:
    """What clients were refused since the start, by AMQP condition; of the whole gateway."""
    vpn_of(request, vpn)
    counts: dict[str, _Refusal] = {
        reason: {"reason": reason, "count": count} for reason, count in REFUSALS.items()
    }
    return await paging.answer(request, counts, counts.get)


def _state(resources: Resources, name: str) -> _State:
    wire_loops = resources.gateway.wire_loops
    waiting = resources.waiting.get(name)
    if waiting is not None:
        return _waiting(waiting, wire_loops)
    return _active(resources.administration(name).vpn, len(resources.clients(name)), wire_loops)


def _active(vpn: MessageVpn, clients: int, wire_loops: str) -> _State:
    broker = vpn.broker
    states = [e.replay.state for e in broker.endpoints.values() if e.replay is not None]
    return {
        "msgVpnName": vpn.name,
        "enabled": vpn.settings.enabled,
        "state": "up" if vpn.settings.enabled else "down",
        "activeGateway": None,
        "storeEngine": vpn.engine,
        "storeProblem": vpn.problem() or vpn.durability.problem(),
        "storeDurability": None if vpn.durability.found is None else vpn.durability.found.value,
        "storeConfirmedAge": None if vpn.lease is None else round(vpn.lease.age_seconds, 1),
        "wireLoops": wire_loops,
        "clientCount": clients,
        "endpointCount": len(broker.endpoints),
        "msgReplayInitializingCount": states.count(ReplayState.INITIALIZING),
        "msgReplayActiveCount": states.count(ReplayState.ACTIVE),
        "msgReplayPendingCompleteCount": states.count(ReplayState.PENDING_COMPLETE),
        "msgReplayFailedCount": states.count(ReplayState.FAILED),
        "lastMsgId": broker.log.next_id - 1,
        "publishedMsgCount": vpn.counters.published_messages,
        "publishedBytes": vpn.counters.published_bytes,
        "settledMsgCount": vpn.counters.settled_messages,
        "pendingBytes": vpn.committer.pending_bytes,
        "directDroppedMsgCount": vpn.counters.direct_dropped_messages,
        "duplicateMsgCount": vpn.counters.duplicate_messages,
    }


def _waiting(vpn: WaitingVpn, wire_loops: str) -> _State:
    """Nothing is known here of what is in it."""
    known = {
        "msgVpnName": vpn.name,
        "enabled": vpn.settings.enabled,
        "state": "standby",
        "activeGateway": vpn.active,
        "storeEngine": "",
        "storeProblem": vpn.sentence,
        "storeDurability": None,
        "storeConfirmedAge": None,
        "wireLoops": wire_loops,
    }
    return cast("_State", {**dict.fromkeys(get_type_hints(_State), 0), **known})


def _alarm(alarm: Alarm, vpn: str) -> _Alarm:
    return {
        "msgVpnName": vpn,
        "alarm": alarm.kind.value,
        "endpointName": "" if alarm.kind is AlarmKind.RETENTION_USE else alarm.subject,
        "thresholdPercent": alarm.threshold_percent,
        "raisedTime": alarm.raised_ms // 1_000,
        "description": alarm.text,
    }


ROUTES: Final = (*_CONFIG.routes, *_MONITOR.routes, *_GATEWAY_ACTION.routes, *_GATEWAY_MONITOR.routes)
