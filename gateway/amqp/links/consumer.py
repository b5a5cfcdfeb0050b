"""
The link of a consumer: messages of an endpoint go out on it, and their outcomes go to the endpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

from proton import Link, Terminus

from amqp_ext.message.annotations import Splicer
from amqp_ext.message.fields import DELIVERY_TIME
from amqp_ext.transactions import Outcome
from gateway.amqp.client import Client
from gateway.amqp.engine.link_table import AttachedLink
from gateway.amqp.engine.native import ACCEPTED, MODIFIED, REJECTED, RELEASED
from gateway.amqp.engine.output import NO_TIME, Confirm, Others
from gateway.amqp.links.base_link import SendingLink
from gateway.amqp.nodes import Lease
from gateway.amqp.transactions import LocalTransaction
from gateway.core.endpoint.endpoint import Flow
from gateway.core.errors import ErrorCode, Refused
from gateway.core.model import ID, Row
from gateway.core.replay.states import Replay

FAILED: Final = Outcome(MODIFIED, failed=True)
"""The outcome of a delivery that gets no other: the message is kept, and counts a failed delivery."""


def _said(outcome: Outcome) -> tuple[int, bool, bool, int]:
    return outcome.code, outcome.failed, outcome.undeliverable, outcome.again_ms


class Consumer(SendingLink):
    """
    A consumer bound to an endpoint.

    Args:
        lease: Its lease on a temporary node.
        default_outcome: The source's default outcome, of deliveries that the receiver settles without an outcome, or
            has not settled when the source ceases to exist (AMQP 1.0 section 3.5.3); None where the source has none.
    """

    kind = "consumer"

    def __init__(
        self,
        link: Link,
        client: Client,
        splicer: Splicer,
        *,
        lease: Lease | None,
        default_outcome: Outcome | None,
    ) -> None:
        self._default_outcome = default_outcome or FAILED
        super().__init__(link, client, splicer, default_outcome=self._default_outcome)
        self._consumers = client.vpn.consumers
        self._committer = client.vpn.committer
        self._transactions = client.transactions
        self.lease = lease
        self._is_stopping = client.is_stopping
        """Whether the gateway is being stopped: then unsettled deliveries do not get the default outcome."""
        self._never_expires = link.remote_source.expiry_policy == Terminus.EXPIRE_NEVER
        self._source_goes_on = False
        """The link ends, but not its source: unsettled deliveries do not get the default outcome."""
        self._max_unsettled = client.limits.max_unsettled_per_flow
        self.flow: Flow | None = None
        self.in_transaction: dict[int, LocalTransaction | None] = {}
        """By id: the transaction that acknowledges an unsettled delivery; None once that was rolled back."""

    def begin(self, flow: Flow) -> None:
        """The attach is answered: messages of the endpoint may go out."""
        self.flow = flow

    def room(self) -> int:
        if self._is_suspended or (self.flow is not None and self.flow.is_stalled):
            return 0
        room = super().room()
        if self.flow is not None and not self.is_pre_settled:
            return min(room, self._most_unsettled(self.flow) - len(self.flow.unsettled))
        return room

    def _most_unsettled(self, flow: Flow) -> int:
        """How many deliveries it may have unsettled: the endpoint's limit, else the gateway's."""
        return flow.endpoint.settings.max_unsettled or self._max_unsettled

    def send(self, rows: Sequence[Row], attempts: Mapping[int, int], end_id: int | None) -> None:
        replay = self.flow.endpoint.replay if self.flow is not None else None
        if replay is None or not replay.is_marking:
            super().send(rows, attempts, end_id)
        elif rows[0][ID] <= replay.kept_up_to:
            self._send_with_kept(rows, attempts, end_id, replay)
        else:
            self.send_marked(rows, attempts, end_id, replay.name, replay.marked_below)
        if self.is_pre_settled and self.flow is not None:
            # The peer asked for at-most-once: a message that is sent is settled.
            self._consumers.settle(self.flow, [row[ID] for row in rows])

    def _send_with_kept(
        self, rows: Sequence[Row], attempts: Mapping[int, int], end_id: int | None, replay: Replay
    ) -> None:
        """Messages from before a replay may not have been delivered yet: they are not marked as replayed."""
        assert self.flow is not None
        was_put = self.flow.endpoint.backlog.put.has
        for is_replayed, found in groupby(rows, lambda row: was_put(row[ID])):
            run = list(found)
            if is_replayed:
                self.send_marked(run, attempts, end_id, replay.name, replay.marked_below)
            else:
                super().send(run, attempts, end_id)

    def nothing_to_send(self) -> None:
        super().nothing_to_send()
        if self.flow is not None:
            # Drained credit is gone: the next message is not for this flow.
            self._consumers.lower_demand(self.flow, self.room())

    def on_credit(self) -> None:
        flow = self.flow
        if flow is None:
            return
        if self._is_suspended:
            self._end_if_idle()
            return
        self._consumers.set_demand(flow, self.room())
        if flow.is_stalled or len(flow.unsettled) >= self._most_unsettled(flow):
            # It gets no message before it settles one: a drain does not wait for that.
            self.nothing_to_send()

    def on_outcomes(self, accepted: list[int], others: Others, confirm: Confirm) -> None:
        flow = self.flow
        if flow is None:
            return
        if self.in_transaction:
            self._leave_transactions([*accepted, *(message_id for message_id, *_ in others)])
        if accepted:
            self._consumers.settle(flow, accepted)
        # A rejected message is not delivered again (AMQP 1.0 section 3.4.3).
        rejected = [i for i, state, *_ in others if state not in (RELEASED, MODIFIED)]
        if rejected:
            self._consumers.reject(flow, rejected)
        undeliverable = [i for i, _, _, undeliverable, _ in others if undeliverable]
        if undeliverable and not self._is_suspended:
            self._consumers.exclude(flow, undeliverable)
        asked_ms = {i: again_ms for i, _, _, _, again_ms in others if again_ms > 0}
        back = [i for i, state, failed, *_ in others if state in (RELEASED, MODIFIED) and not failed]
        if back:
            self._consumers.release(flow, back, failed=False, asked_ms=asked_ms)
        failed = [i for i, state, failed, *_ in others if state == MODIFIED and failed]
        if failed:
            self._consumers.release(flow, failed, failed=True, asked_ms=asked_ms)
        if confirm is not None:
            self._committer.commit((), lambda _: self._confirmed(confirm))
        if any(again_ms == NO_TIME for *_, again_ms in others):
            self.refuse(
                Refused(
                    ErrorCode.INVALID_FIELD,
                    f"{DELIVERY_TIME} in modified, the time to deliver again, is a whole number of "
                    "milliseconds since 1970",
                )
            )
            return
        # Outcomes bring no credit: a flow that has demand waits for messages already.
        if self._is_suspended or (flow.demand <= 0 and self.transfers.credit > 0):
            self.on_credit()

    def take_back(self, ids: Sequence[int]) -> bool:
        self._transactions.has_lost_any = True
        for message_id in ids:
            transaction = self.in_transaction.pop(message_id, None)
            if transaction is not None:
                self._transactions.taken_back(transaction)
                self.in_transaction.pop(message_id, None)
        return super().take_back(ids)

    def on_confirmed(self) -> None:
        if self.flow is not None:
            self._consumers.confirmed(self.flow)
            self.on_credit()

    def on_renewed(self, ids: list[int]) -> None:
        if self.flow is not None:
            self._consumers.renew(self.flow, ids)

    # --- in a transaction ---------------------------------------------------------------------------------------

    def on_transactional(self, message_id: int, state: Any, delivery: Any) -> None:
        super().on_transactional(message_id, state, delivery)
        self._transactions.acknowledge(self, message_id, state, delivery)

    def acknowledged_in(self, transaction: LocalTransaction, message_id: int) -> None:
        """A transaction is to settle a delivery."""
        self.in_transaction[message_id] = transaction

    def _leave_transactions(self, ids: list[int]) -> None:
        """The peer has settled these outside of their transactions."""
        for message_id in ids:
            transaction = self.in_transaction.pop(message_id, None)
            if transaction is not None:
                self._transactions.settled_outside(transaction)
                self.in_transaction.pop(message_id, None)

    def committed(self, outcomes: list[tuple[int, Outcome, Any]]) -> None:
        """A transaction has committed these: accepted messages are settled, the rest get their outcomes now."""
        for message_id, outcome, delivery in outcomes:
            self.in_transaction.pop(message_id, None)
            if delivery is not None:
                self.transfers.settle(delivery, outcome.code)
        others = [(i, *_said(o)) for i, o, _ in outcomes if o.code != ACCEPTED]
        self.on_outcomes([], others, None)
        self._output.schedule_flush()

    def revert(self, message_id: int, delivery: Any) -> None:
        """
        Undo the outcome that a transaction gave to a delivery. The delivery stays with its consumer, which may give it
        another outcome; if the consumer has settled it (None), it gets the default outcome (AMQP 1.0 section 4.4.2).
        """
        self.in_transaction.pop(message_id, None)
        if delivery is not None:
            self.in_transaction[message_id] = None
        elif self.flow is not None:
            default = self._default_outcome
            accepted = [message_id] if default.code == ACCEPTED else []
            others = [] if accepted else [(message_id, *_said(default))]
            self.on_outcomes(accepted, others, None)
            self.on_credit()

    def _confirmed(self, confirm: Callable[[], None]) -> None:
        confirm()
        self._output.schedule_flush()

    # --- the link -----------------------------------------------------------------------------------------------

    @property
    def _stands_for_something(self) -> bool:
        flow = self.flow
        if flow is None or self.link.remote_source.expiry_policy == Terminus.EXPIRE_WITH_LINK:
            return False
        return self._keeps_node or bool(flow.unsettled or self.in_transaction)

    def suspend(self) -> bool:
        """
        The peer has detached the link and not closed it. Until its session ends, it can still settle its deliveries,
        directly or in a transaction (AMQP 1.0 sections 2.6.3 and 4.4.2).
        """
        flow = self.flow
        if flow is None or not super().suspend():
            return False
        self._links.stop_waiting(self)
        self._consumers.suspend(flow)
        return True

    def _resume(self) -> None:
        if self.flow is not None and self.flow.demand <= 0 and self.transfers.credit > 0:
            self.on_credit()

    def detached(self, *, closed: bool) -> None:
        self.transfers.close()
        self.in_transaction.clear()
        if self.flow is not None:
            self._transactions.has_lost_any |= bool(self.flow.unsettled)
            self._unbind(self.flow, closed=closed)
            self.flow = None
        super().detached(closed=closed)

    def _unbind(self, flow: Flow, *, closed: bool) -> None:
        """The link has ceased to exist. If its source has, too, unsettled deliveries get the default outcome."""
        is_source_gone = (closed or not self._never_expires) and not self._source_goes_on
        default = self._default_outcome if is_source_gone and not self._is_stopping() else FAILED
        if default.code == ACCEPTED:
            self._consumers.unbind_settling(flow)
        elif default.code == REJECTED:
            self._consumers.unbind_rejecting(flow)
        else:
            self._consumers.unbind(flow, failed=default.failed)

    def resume(self, older: AttachedLink) -> None:
        super().resume(older)
        if isinstance(older, Consumer):
            older._source_goes_on = True

    def refuse(self, refused: Refused) -> None:
        self._source_goes_on = True
        super().refuse(refused)

    def finish(self) -> None:
        """A bounded replay is over: detach without error."""
        self._links.detach(self.link, None)
