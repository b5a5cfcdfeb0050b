"""Jobs: the log copied into an address, and dead letters sent back; begun, paused, resumed, cancelled."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Annotated, Final, Literal, TypeAlias

from fastapi import Depends, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from amqp_ext.replay_start import OPTION, Missing, parse_text
from amqp_ext.replay_start.modifiers import with_modifiers
from gateway.admin import rights
from gateway.admin.administrators import Administrator, administrator_of
from gateway.admin.lazy_route import LazyRoute
from gateway.admin.semp.documented import InVpn, done, listed, one, resource
from gateway.admin.semp.envelope import Answer, answer, list_answer
from gateway.admin.semp.paging import Pages
from gateway.admin.semp.resources import QUEUES, Name, check_log, endpoint_of, vpn_of
from gateway.admin.semp.tree import Tree
from gateway.admin.waiting import while_waiting
from gateway.vpn.jobs.dead_return import count_dead
from gateway.vpn.jobs.job import Job
from gateway.vpn.jobs.jobs import CopyRequest, ReturnRequest

Rate = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]
Text = Annotated[str, Field(max_length=10_000)]
ReplayName = Annotated[str, Field(max_length=200)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class StartCopy(_Body):
    """What of the log is published again, and where."""

    start: Text = Field(
        "beginning", description="Any start, as `startReplay` has it; `live` is none for a copy."
    )
    until: Text | None = Field(
        None,
        description="The last message: `now`, a date, `#123` or `rmid1:…`. Without, and at most, what the log has now.",
    )
    missing: Literal["fail", "clamp"] = Field(
        "fail", description="`clamp` takes the nearest place where the start is not in the log (any more)."
    )
    subscriptions: list[Text] = Field(
        [], description="Topic patterns; none for all. `!` in front leaves out what the others match."
    )
    selector: Text = Field("", description="A selector that the messages match.")
    target: Text = Field(description="An address: `queue://NAME` or `topic://TOPIC`.")
    replayTarget: ReplayName = Field(
        "",
        description="Whose address that is: the label of a `replay_target` of the configuration. Without, this Message "
        "VPN's.",
    )
    rate: Rate | None = Field(None, description="Messages a second, at most.")
    speed: Rate | None = Field(None, description="A factor of the pace at which they were published.")
    name: ReplayName = Field("", description="What it is called; without, by who asks and when.")


class ReturnDead(_Body):
    """Which dead letters are sent back, and where."""

    selector: Text = Field("", description="A selector that the messages match.")
    target: Text = Field("", description="An address; without, where each of them died.")
    rate: Rate | None = Field(None, description="Messages a second, at most.")
    limit: Annotated[int, Field(ge=0, lt=2**63)] = Field(0, description="So many at most; 0 for all.")
    name: ReplayName = Field("", description="What it is called; without, by who asks and when.")


class OfReplay(_Body):
    """A job."""

    replayName: ReplayName = Field(description="Its name.")


class _Begun(TypedDict):
    replayName: str
    firstMsgId: int
    lastMsgId: int


class _DeadGroup(InVpn):
    queueName: str
    deadReason: str
    deadEndpointName: str
    msgCount: int
    msgSpoolUsage: int


BEGUN: Final = resource("ReplayJobBegun", _Begun)
DEAD_GROUP: Final = resource("DeadMsgGroup", _DeadGroup)

_Command: TypeAlias = Callable[[Job, str], Awaitable[None]]
"""What is done with a job, by the administrator of this name."""

_Asking = Annotated[Administrator, Depends(administrator_of)]


def job_routes() -> list[LazyRoute]:
    """``/action/msgVpns/{vpn}/replayLogs/{log}/…`` of jobs, and ``…/queues/{name}/returnDead``."""
    tree = Tree("action", "/msgVpns/{vpn}")

    @tree.put(
        "/replayLogs/{log}/startCopy",
        rights.COPIED,
        summary="Ours: publish a part of the log to an address, as a job",
        responses=one(BEGUN),
    )
    async def start_copy(
        request: Request, vpn: Name, log: Name, body: StartCopy, administrator: _Asking
    ) -> Answer:
        administration = vpn_of(request, vpn)
        check_log(log)
        place = replace(parse_text(body.start), missing=Missing(body.missing))
        if body.until is not None:
            place = with_modifiers(place, {"until": body.until}, OPTION)
        wanted = CopyRequest(
            place,
            body.target,
            administrator.name,
            body.start,
            body.until or "",
            tuple(body.subscriptions),
            body.selector,
            body.rate,
            body.speed,
            body.name,
            body.replayTarget,
        )
        # A start that is searched for may be far away.
        record = await while_waiting(request, administration.vpn.jobs.copy(wanted))
        return answer(
            request,
            {"replayName": record.name, "firstMsgId": record.position, "lastMsgId": record.end - 1},
        )

    def declare_command(name: str, summary: str, command: _Command) -> None:
        @tree.put(f"/replayLogs/{{log}}/{name}", rights.OWN_REPLAY, summary=summary, responses=done)
        async def tell(
            request: Request, vpn: Name, log: Name, body: OfReplay, administrator: _Asking
        ) -> Answer:
            administration = vpn_of(request, vpn)
            check_log(log)
            await command(administration.vpn.jobs.find(body.replayName), administrator.name)
            return answer(request)

    declare_command("pauseReplay", "Ours: pause a job", lambda job, by: job.pause())
    declare_command("resumeReplay", "Ours: have a paused job go on", lambda job, by: job.resume())
    declare_command(
        "cancelReplay", "Ours: end a job; what it has published stays", lambda job, by: job.cancel(by)
    )

    @tree.put(
        "/queues/{name}/returnDead",
        rights.RETURNED,
        summary="Ours: send dead letters back to where they died, or elsewhere, as a job",
        responses=one(BEGUN),
    )
    async def return_dead(
        request: Request, vpn: Name, name: Name, body: ReturnDead, administrator: _Asking
    ) -> Answer:
        administration = vpn_of(request, vpn)
        record = await administration.vpn.jobs.return_dead(
            ReturnRequest(
                name, body.target, administrator.name, body.selector, body.rate, body.limit, body.name
            )
        )
        return answer(request, {"replayName": record.name, "firstMsgId": 0, "lastMsgId": record.end - 1})

    return tree.routes


def dead_letter_routes() -> list[LazyRoute]:
    """``/monitor/msgVpns/{vpn}/queues/{name}/deadMsgs``."""
    tree = Tree("monitor", "/msgVpns")

    @tree.get(
        "/{vpn}/queues/{name}/deadMsgs",
        rights.QUEUE,
        summary="Ours: what lies on a queue, counted by why and where it died",
        responses=listed(DEAD_GROUP),
    )
    async def dead(
        request: Request,
        vpn: Name,
        name: Name,
        paging: Pages,
        by: Annotated[
            Literal["reason", "endpoint", "both"], Query(description="Ours: what tells groups apart.")
        ] = "both",
    ) -> Answer:
        administration = vpn_of(request, vpn)
        running = administration.vpn
        endpoint = endpoint_of(administration, name, QUEUES)
        groups = await while_waiting(request, count_dead(running.readers, endpoint, by, running.runtime.loop))
        found = {
            f"{reason}\n{origin}": {
                "msgVpnName": vpn,
                "queueName": name,
                "deadReason": reason,
                "deadEndpointName": origin,
                "msgCount": group.messages,
                "msgSpoolUsage": group.size_bytes,
            }
            for (reason, origin), group in groups.items()
        }
        page, cursor = await paging.page(found, found.get)
        return list_answer(request, page, cursor, len(found))

    return tree.routes
