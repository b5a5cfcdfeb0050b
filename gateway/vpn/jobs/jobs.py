"""
The jobs of a Message VPN: begin a job, find it by name, pause, resume and cancel it, and continue it after a restart.

The permissions that a job needs are checked when it begins, and for as long as it runs (``to_copy``, ``to_return``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from amqp_ext.addresses.address import AddressKind, parse_target
from amqp_ext.addresses.forms import AddressError
from amqp_ext.replay_start import ReplayStart, StartKind
from amqp_ext.topics import TopicPattern, TopicSyntaxError
from gateway.core.endpoint.settings import EndpointKind
from gateway.core.errors import ErrorCode, Refused
from gateway.core.model import COPY, DEAD_RETURN, FAILED, ReplayRecord, Row
from gateway.core.permissions import OPEN, Action, Permissions
from gateway.logging import log_keys
from gateway.vpn.consumers import Consumers
from gateway.vpn.endpoints import Endpoints
from gateway.vpn.jobs.copies import CopyJob, OpenRemote, RemoteCopyJob, checked, positive
from gateway.vpn.jobs.dead_return import DeadReturn, check_is_free
from gateway.vpn.jobs.job import RUNNING, Job, JobShared, Progress, check_no_host, selector_of, topic_of
from gateway.vpn.log import MessageLog
from gateway.vpn.publishing import Publishing
from gateway.vpn.runtime import keep
from gateway.vpn.state import VpnService, VpnState

PermissionsOf: TypeAlias = Callable[[str, str], Permissions]
"""Called with the name of a user and of a Message VPN: what the user may do there now, by the directory."""


@dataclass(frozen=True, slots=True)
class JobPorts:
    """
    Attributes:
        open_remote: Opens a publisher at another gateway; None if no copies go to other gateways.
        permissions: What a user may do in a Message VPN now; by default everything.
    """

    open_remote: OpenRemote | None = None
    permissions: PermissionsOf = lambda user, vpn: OPEN

    def why_not(self, vpn: str, record: ReplayRecord) -> str:
        """Why a job of a Message VPN may not go on in its requester's name; empty where it may."""
        permissions = self.permissions(record.requester, vpn)
        demands = (
            to_copy(record.subscriptions, record.target, is_remote=bool(record.remote))
            if record.kind == COPY
            else to_return(record.source, record.target)
        )
        for demand in demands:
            if not demand.is_met(permissions):
                return f"user {record.requester!r}, who began it, may no longer {demand.what}"
        return ""


class Jobs(VpnService):
    def __init__(
        self,
        state: VpnState,
        publishing: Publishing,
        consumers: Consumers,
        endpoints: Endpoints,
        log: MessageLog,
        ports: JobPorts,
    ) -> None:
        super().__init__(state)
        self._shared = JobShared(state, publishing, consumers, endpoints, partial(ports.why_not, state.name))
        self._open_remote = ports.open_remote
        self._log = log
        self._jobs: dict[str, Job] = {}
        """By name: jobs that have not ended, and ended ones until ``_check_room`` deletes them."""
        self._checking: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Continue the jobs that a stop interrupted; paused jobs stay paused."""
        for record in list(self._broker.replay_records):
            if record.kind not in (COPY, DEAD_RETURN) or record.is_ended:
                continue
            try:
                job = self._job(record)
            except Refused as refused:
                ended = replace(record, state=FAILED, outcome=refused.text, ended_ms=self._now_ms())
                self._committer.commit(self._broker.replay_records.put(ended))
                continue
            self._jobs[record.name] = job
            if isinstance(job, CopyJob):
                job.check_since_stop()
            job.start()
        # The configuration may have taken permissions away.
        self.users_changed()

    def users_changed(self) -> None:
        """Permissions of users changed: a job whose requester lost the permission pauses, and its record says why."""
        for job in self._jobs.values():
            keep(self._loop.create_task(job.check_requester()), self._checking)

    def close(self) -> None:
        """Stop all jobs: the batch in progress is committed, and no other begins."""
        for job in self._jobs.values():
            job.close()

    def erased(self, markers: Mapping[int, Row]) -> None:
        """The contents of these messages were erased."""
        for job in self._jobs.values():
            job.erased(markers)

    def leaving(self, found: Sequence[tuple[int, str]]) -> None:
        """Retention rules are about to remove these messages, (id, topic), from the middle of the log."""
        for job in self._jobs.values():
            if isinstance(job, CopyJob) and not job.record.is_ended:
                job.leaving(found)

    # --- begun ----------------------------------------------------------------------------------------------------

    async def copy(self, wanted: ReplayRecord, place: ReplayStart) -> ReplayRecord:
        """
        Begin to publish a part of the log to an address; returns when the job is durable.

        Args:
            wanted: The job as requested; its progress is ignored. Without subscriptions it copies all topics.
            place: Where it starts, and where a bounded copy ends; any other ends at the present end of the log.

        Raises:
            Refused: INVALID_FIELD, NOT_FOUND, NOT_ALLOWED: something is wrong with the request; an error of a start
                that is not available (docs/reference/refusals.md); ALREADY_EXISTS, the name is taken; RESOURCE_LIMIT,
                there are as many jobs as the limit allows.
        """
        self._check_room()
        self._broker.policy.check_reads("there is nothing to copy from")
        if place.kind is StartKind.LIVE:
            raise Refused(
                ErrorCode.INVALID_FIELD, "a copy needs messages that the log has; `live` starts after them"
            )
        subscriptions = checked(wanted.subscriptions)
        selector_of(wanted.selector)
        end = self._broker.log.next_id
        place = replace(place, rate=None, speed=None)
        resolved = await self._log.resolve_start(place, positive(subscriptions), wanted.requester)
        if resolved.last is not None:
            end = min(end, resolved.last + 1)
        if wanted.remote:
            self._check_remote(wanted.remote, wanted.target)
        else:
            self._topic_of(wanted)
        return await self._begin_job(
            replace(
                wanted,
                subscriptions=subscriptions,
                position=resolved.first,
                end=max(end, resolved.first),
                without_below=self._broker.retention.taken_from(subscriptions).below,
            )
        )

    async def return_dead(self, wanted: ReplayRecord) -> ReplayRecord:
        """
        Begin to send dead letters back; returns when the job is durable.

        Args:
            wanted: As in ``copy``; without a target each message goes to the endpoint where it died.

        Raises:
            Refused: NOT_FOUND, there is no such queue; RESOURCE_LOCKED, the queue is exclusive and has a consumer; and
                as ``copy``.
        """
        self._check_room()
        queue = self._shared.endpoints.by_name.get(wanted.source)
        if queue is None or queue.kind is not EndpointKind.QUEUE:
            raise Refused(ErrorCode.NOT_FOUND, f"there is no queue {wanted.source!r}")
        check_is_free(queue)
        selector_of(wanted.selector)
        if wanted.target:
            self._topic_of(wanted)
        return await self._begin_job(replace(wanted, end=self._broker.log.unused_id))

    async def _begin_job(self, record: ReplayRecord) -> ReplayRecord:
        self._check_room()
        record = replace(record, state=RUNNING, started_ms=self._now_ms())
        record, effects = self._broker.replay_records.begin(record)
        try:
            job = self._jobs[record.name] = self._job(record)
            await self._committer.committed(effects)
        except Refused:
            self._jobs.pop(record.name, None)
            self._broker.replay_records.withdraw(record)
            raise
        self._runtime.log.info(
            "replay_job_started",
            **{
                log_keys.REPLAY: record.name,
                log_keys.USER: record.requester,
                log_keys.ADDRESS: f"{record.target} at {record.remote}" if record.remote else record.target,
                log_keys.START: record.start,
                log_keys.LAST: record.end - 1,
            },
        )
        job.start()
        return record

    def _job(self, record: ReplayRecord) -> Job:
        if record.remote:
            if self._open_remote is None:
                raise Refused(ErrorCode.NOT_ALLOWED, "this gateway does not publish to other gateways")
            return RemoteCopyJob(self._shared, record, self._open_remote)
        topic = self._topic_of(record) if record.target else ""
        if record.kind == COPY:
            return CopyJob(self._shared, record, topic)
        return DeadReturn(self._shared, record, topic)

    def _topic_of(self, record: ReplayRecord) -> str:
        """The topic of this Message VPN that a job publishes to."""
        return topic_of(record.target, self._shared.endpoints, self._shared.publishing)

    def _check_remote(self, label: str, address: str) -> None:
        """Check that the configuration names the peer and that an address is given; the peer itself checks it later."""
        check_no_host(address)
        if not address.strip() or not address.isprintable():
            raise Refused(
                ErrorCode.INVALID_FIELD, "name the address to publish to there, such as queue://orders"
            )
        if label not in self._settings.vpn.replay_targets:
            raise Refused(
                ErrorCode.NOT_FOUND,
                f"the configuration has no replay target {label[:80]!r} in this Message VPN; it names where copies "
                "may go",
            )

    def _check_room(self) -> None:
        for name in [name for name, job in self._jobs.items() if job.record.is_ended]:
            del self._jobs[name]
        most = self._settings.limits.replay_jobs
        if len(self._jobs) >= most:
            raise Refused(
                ErrorCode.RESOURCE_LIMIT,
                f"there are {len(self._jobs)} jobs, including paused ones, and there may be {most} "
                "(replay_jobs); cancel one, or wait until one ends",
            )

    # --- found ----------------------------------------------------------------------------------------------------

    def find(self, name: str) -> Job:
        """
        The job of this name.

        Raises:
            Refused: NOT_FOUND, there is no replay of this name; PRECONDITION_FAILED, it has ended, or it is not a job
                but a replay onto an endpoint.
        """
        job = self._jobs.get(name)
        if job is not None:
            return job
        record = self._broker.replay_records.get(name)
        raise Refused(
            ErrorCode.PRECONDITION_FAILED,
            f"the replay {name!r} is {record.state}"
            if record.is_ended
            else f"{name!r} is a replay onto {record.target!r}: cancel it there",
        )

    def progress(self, name: str) -> Progress:
        """How fast a job advances; zero if it has ended."""
        job = self._jobs.get(name)
        return Progress(0.0, None) if job is None else job.progress


class Demand(NamedTuple):
    """An action that at least one of several rules must permit."""

    what: str
    """The action as text that follows "may not"."""
    rules: tuple[tuple[Action, AddressKind, str], ...]

    def is_met(self, permissions: Permissions) -> bool:
        """Whether a user with these permissions may do it."""
        return any(permissions.decide(*rule).is_allowed for rule in self.rules)


WHOLE_LOG: Final = Demand("administer log://>", ((Action.ADMINISTER, AddressKind.LOG, ">"),))


def to_copy(patterns: Sequence[str], target: object, *, is_remote: bool) -> list[Demand]:
    """
    What a copy demands.

    Args:
        patterns: Its subscriptions, including exceptions; empty for all topics.
        target: Its address; the operation itself refuses an invalid one.
        is_remote: The address belongs to another gateway.
    """
    if is_remote:
        # The other gateway sees the user of the configuration, so the requester's own permissions do not suffice.
        return [WHOLE_LOG]
    return [*map(_to_read, positive(patterns) or (">",)), to_publish(target)]


def to_return(queue: str, target: object) -> list[Demand]:
    """
    What sending dead letters back demands.

    Args:
        queue: The queue that they are on.
        target: An address; empty for the endpoint where each message died.
    """
    administered = Demand(
        f"administer queue://{queue[:250]}", ((Action.ADMINISTER, AddressKind.QUEUE, queue),)
    )
    # The message says where it goes, and any publisher to the queue may have written that.
    return [administered, to_publish(target) if target else WHOLE_LOG]


def _to_read(pattern: str) -> Demand:
    """What reading a pattern demands: a copy reads it as a client reads ``log://``."""
    try:
        TopicPattern.parse(pattern)
    except TopicSyntaxError:
        return WHOLE_LOG
    return Demand(
        f"read log://{pattern}: that needs the right to consume it, or to administer it",
        ((Action.CONSUME, AddressKind.LOG, pattern), (Action.ADMINISTER, AddressKind.LOG, pattern)),
    )


def to_publish(address: object) -> Demand:
    """What publishing to an address demands."""
    try:
        target = parse_target(address) if isinstance(address, str) else None
    except AddressError:
        target = None
    if target is None or target.kind not in (AddressKind.QUEUE, AddressKind.TOPIC):
        return WHOLE_LOG
    return Demand(
        f"publish to {target.kind.value}://{target.name}: that needs the right to publish to it, or to "
        "administer it",
        ((Action.PUBLISH, target.kind, target.name), (Action.ADMINISTER, target.kind, target.name)),
    )
