"""Message VPNs: create, change and delete them, show their state; show the gateway's configuration, and reload it."""

import asyncio
from functools import partial
from typing import Annotated, Any, Final, Literal, NamedTuple

from fastapi import Request
from pydantic import Field

from gateway.admin import rights
from gateway.admin.operations import Tree
from gateway.admin.semp.envelope import Attributes, Body, InVpn, ListAnswer, SempError, Shown, resource
from gateway.admin.semp.paging import Pages
from gateway.admin.semp.resources import Name, OfVpn, Resources, resources_of, vpn_of
from gateway.config import ConfigError, effective_toml
from gateway.core.alarms import Alarm, AlarmKind
from gateway.core.replay.states import ReplayState
from gateway.vpn.message_vpn import MessageVpn
from gateway.vpn.role import WaitingVpn
from gateway.vpn.runtime import REFUSALS
from gateway.vpn.upkeep.trends import Sampler


class VpnBody(Body):
    """The attributes of a Message VPN that can change while it runs."""

    # An alias is the name of the setting.
    enabled: bool | None = None
    """`false` disconnects its clients, and refuses new ones."""
    createQueuesEnabled: bool | None = Field(None, serialization_alias="create_queues")
    """Ours: whether a queue is made when it is first used."""


class NewVpn(VpnBody):
    """The Message VPN to be made; enabled by default."""

    msgVpnName: Annotated[str, Field(exclude=True)]
    """1 to 64 characters of A-Z a-z 0-9 . _ -"""


class _Active(NamedTuple):
    """An active Message VPN, and what the gateway knows of it."""

    vpn: MessageVpn
    clients: int
    wire_loops: str
    states: list[ReplayState]


_STATE: Final = Shown[_Active](
    {
        "msgVpnName": (str, lambda found: found.vpn.name),
        "enabled": (bool, lambda found: found.vpn.settings.enabled),
        "state": (
            Literal["up", "down", "standby"],
            lambda found: "up" if found.vpn.settings.enabled else "down",
        ),
        "activeGateway": (str | None, lambda found: None),
        "storeEngine": (str, lambda found: found.vpn.engine),
        "storeProblem": (str | None, lambda found: found.vpn.problem() or found.vpn.durability.problem()),
        "storeDurability": (
            Literal["disk", "two-machines", "one-machine"] | None,
            lambda found: found.vpn.durability.found and found.vpn.durability.found.value,
        ),
        "storeConfirmedAge": (
            float | None,
            lambda found: found.vpn.lease and round(found.vpn.lease.age_seconds, 1),
        ),
        "wireLoops": (str, lambda found: found.wire_loops),
        "clientCount": (int, lambda found: found.clients),
        "endpointCount": (int, lambda found: len(found.vpn.broker.endpoints)),
        "msgReplayInitializingCount": (int, lambda found: found.states.count(ReplayState.INITIALIZING)),
        "msgReplayActiveCount": (int, lambda found: found.states.count(ReplayState.ACTIVE)),
        "msgReplayPendingCompleteCount": (
            int,
            lambda found: found.states.count(ReplayState.PENDING_COMPLETE),
        ),
        "msgReplayFailedCount": (int, lambda found: found.states.count(ReplayState.FAILED)),
        "lastMsgId": (int, lambda found: found.vpn.broker.log.next_id - 1),
        "publishedMsgCount": (int, lambda found: found.vpn.counters.published_messages),
        "publishedBytes": (int, lambda found: found.vpn.counters.published_bytes),
        "settledMsgCount": (int, lambda found: found.vpn.counters.settled_messages),
        "pendingBytes": (int, lambda found: found.vpn.committer.pending_bytes),
        "directDroppedMsgCount": (int, lambda found: found.vpn.counters.direct_dropped_messages),
        "duplicateMsgCount": (int, lambda found: found.vpn.counters.duplicate_messages),
    }
)
_ALARM: Final = Shown[Alarm](
    {
        "alarm": (str, lambda alarm: alarm.kind.value),
        "endpointName": (str, lambda alarm: "" if alarm.kind is AlarmKind.RETENTION_USE else alarm.subject),
        "thresholdPercent": (int, lambda alarm: alarm.threshold_percent),
        "raisedTime": (int, lambda alarm: alarm.raised_ms // 1_000),
        "description": (str, lambda alarm: alarm.text),
    }
)


class Sampled(InVpn):
    """The attributes of every series over the last hour."""

    intervalMs: int
    untilTimeMs: int


_RATES: Final = ("publishedMsgs", "publishedBytes", "settledMsgs", "refusals")


def sampled(vpn: str, sampler: Sampler, **counts: list[int]) -> dict[str, Any]:
    """The series of a Message VPN over the last hour, a count for each interval."""
    return {
        "msgVpnName": vpn,
        "intervalMs": sampler.interval_ms,
        "untilTimeMs": sampler.until_ms,
        **counts,
    }


VPN: Final = resource("MsgVpn", NewVpn, maxTopicBytes=int, maxTopicLevels=int)
RELOADED: Final = resource("Reloaded", applied=list[str], refused=list[str])
CONFIGURATION: Final = resource("Configuration", toml=str)
VPN_STATE: Final = resource("MsgVpnState", _STATE)
ALARM: Final = resource("Alarm", InVpn, _ALARM)
RATES: Final = resource("MsgVpnRates", Sampled, **dict.fromkeys(_RATES, list[int]))
REFUSAL: Final = resource("Refusal", reason=str, count=int)

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

    return await paging.answer([*active, *waiting], show)


@_CONFIG.post("", rights.GATEWAY_CHANGED, VPN)
async def create(request: Request, body: NewVpn) -> Attributes:
    """Make a Message VPN, with a file of its own."""
    changes = body.model_dump(by_alias=True, exclude_none=True)
    vpn = await resources_of(request).gateway.vpns.create(body.msgVpnName, changes)
    return _configured(vpn)


@_CONFIG.get("/{vpn}", rights.WHOLE_VPN, VPN)
async def one_vpn(administration: OfVpn) -> Attributes:
    """One Message VPN."""
    return _configured(administration.vpn)


@_CONFIG.patch("/{vpn}", rights.WHOLE_VPN, VPN)
async def change(request: Request, administration: OfVpn, body: VpnBody) -> Attributes:
    """Enable, disable or change a Message VPN."""
    changes = body.model_dump(by_alias=True, exclude_none=True)
    await resources_of(request).gateway.vpns.change(administration.vpn.name, changes)
    return _configured(administration.vpn)


@_CONFIG.delete("/{vpn}", rights.GATEWAY_CHANGED)
async def delete(request: Request, administration: OfVpn) -> None:
    """Delete a Message VPN that is disabled and empty, with its file."""
    await resources_of(request).gateway.vpns.delete(administration.vpn.name)


@_GATEWAY_ACTION.put("/reload", rights.GATEWAY_CHANGED, RELOADED)
async def reload(request: Request) -> Attributes:
    """Ours: read the configuration file again, and apply every change that needs no restart."""
    try:
        reloaded = await resources_of(request).gateway.reload()
    except ConfigError as error:
        raise SempError("NOT_ALLOWED", "Nothing was changed: " + "; ".join(error.problems) + ".") from None
    return {
        "applied": [str(difference) for difference in reloaded.applied],
        "refused": [str(difference) for difference in reloaded.refused],
    }


@_GATEWAY_MONITOR.get("/configuration", rights.GATEWAY_SEEN, CONFIGURATION)
async def configuration(request: Request) -> Attributes:
    """All settings in effect, including what administrators changed; without secrets."""
    settings = resources_of(request).gateway.vpns.settings
    # On a thread: the configuration may have thousands of queues.
    toml = await asyncio.get_running_loop().run_in_executor(None, partial(effective_toml, settings))
    return {"toml": toml}


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
    return await paging.answer(names, lambda name: _state(resources, name))


@_MONITOR.get("/{vpn}", rights.WHOLE_VPN, VPN_STATE, name="one_vpn")
async def vpn_state(request: Request, vpn: Name) -> Attributes:
    """One Message VPN."""
    return _state(resources_of(request), vpn)


@_MONITOR.list("/{vpn}/alarms", rights.WHOLE_VPN, ALARM)
async def alarms(request: Request, vpn: Name, paging: Pages) -> ListAnswer:
    """Ours: the active alarms."""
    waiting = resources_of(request).waiting.get(vpn)
    active = waiting.alarms.active() if waiting is not None else vpn_of(request, vpn).vpn.alarms.active()
    found = {
        f"{alarm.kind.value} {alarm.threshold_percent:03} {alarm.subject}": {
            "msgVpnName": vpn,
            **_ALARM.of(alarm),
        }
        for alarm in active
    }
    return await paging.answer(found, found.get)


@_MONITOR.get("/{vpn}/rates", rights.WHOLE_VPN, RATES)
async def rates(administration: OfVpn) -> Attributes:
    """Messages published and settled, and refusals, in each interval of the last hour, the oldest first; refusals are
    of the whole gateway.
    """
    vpn, found = administration.vpn, administration.vpn.rates
    return sampled(vpn.name, found, **{name: found.counts(name) for name in _RATES})


@_MONITOR.list("/{vpn}/refusals", rights.WHOLE_VPN, REFUSAL)
async def refusals(_administration: OfVpn, paging: Pages) -> ListAnswer:
    """Refusals since the start of the gateway, by AMQP condition; of the whole gateway."""
    return await paging.answer(REFUSALS, lambda reason: {"reason": reason, "count": REFUSALS[reason]})


def _state(resources: Resources, name: str) -> dict[str, Any]:
    wire_loops = resources.gateway.wire_loops
    waiting = resources.waiting.get(name)
    if waiting is not None:
        return _waiting(waiting, wire_loops)
    vpn = resources.administration(name).vpn
    states = [e.replay.state for e in vpn.broker.endpoints.values() if e.replay is not None]
    return _STATE.of(_Active(vpn, len(resources.clients(name)), wire_loops, states))


def _waiting(vpn: WaitingVpn, wire_loops: str) -> dict[str, Any]:
    """The state of a Message VPN that waits for its store; its counts are zero here, as another gateway has them."""
    return dict.fromkeys(_STATE.types, 0) | {
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


ROUTES: Final = (*_CONFIG.routes, *_MONITOR.routes, *_GATEWAY_ACTION.routes, *_GATEWAY_MONITOR.routes)
