"""
The links of a dialect's request node: requests come in on one, answers go out on another.

The answer to a request goes to a receiving link from the same node. Where both links have the property ``paired`` (link
pairing, as HTTP over AMQP 1.0 uses it), that is the link of the same name and session. Otherwise it is the link whose
target, or whose name if it has no target, is the request's reply-to. Requests of one link are carried out in their
order, each durable before it is answered.

Invariant: a link has at most ``WINDOW`` unanswered requests, including those whose answers wait for credit or for room
in the connection's output: each answer brings credit for the next request. A message that is no valid request is
answered with an error if possible, and otherwise rejected; its link is detached if it came settled. No other link is
affected.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from proton import Delivery, Link

from amqp_ext.codec import CodecError
from amqp_ext.request_nodes import Request, RequestError
from gateway.amqp.client import Client
from gateway.amqp.dialects.hooks import ServedNode
from gateway.amqp.engine.conditions import code_of, reason_keys
from gateway.amqp.engine.link_table import Sending
from gateway.amqp.engine.loops import LOOPS
from gateway.amqp.links.base_link import BaseLink, ControlLink
from gateway.core.errors import ErrorCode, Refused
from gateway.logging import log_keys
from gateway.vpn.runtime import REFUSALS

WINDOW: Final = 8
"""Requests of one link that may wait for their answers; as many as RabbitMQ takes."""

MAX_REQUEST_BYTES: Final = 64 * 1024
"""Largest request: a token or the arguments of a queue are a fraction of it."""


class _Waiting(NamedTuple):
    """A request that waits for its answer."""

    request: Request
    delivery: Delivery | None
    """Settled with the answer; None where it came settled."""
    error: Refused | None
    """Why it cannot be carried out, where that is known already."""


class RequestLink(ControlLink):
    """
    A link that requests come in on.

    Args:
        served: The node, and the function that carries out its requests.
        paired: Whether it is one of a pair of links: answers go out on the other.
    """

    kind = "requests"
    window = WINDOW
    most_bytes = MAX_REQUEST_BYTES

    def __init__(self, link: Link, client: Client, served: ServedNode, *, paired: bool) -> None:
        super().__init__(link, client)
        self._client = client
        self._node = served.node
        self._perform = served.perform
        self._is_paired = paired
        self._waiting: deque[_Waiting] = deque()
        self._is_working = False

    @property
    def incoming(self) -> Callable[[], None]:
        return self.receive

    @property
    def node_address(self) -> str:
        """The node, as the peer spells it."""
        return str(self.link.remote_target.address)

    # --- requests come --------------------------------------------------------------------------------------------

    def receive(self) -> None:
        """Take every request that is complete."""
        while self._take():
            pass
        if not self._is_closed and self.link.credit < 0:
            raise Refused(
                ErrorCode.TRANSFER_LIMIT,
                "transfers came beyond the credit of their link (AMQP 1.0 section 2.6.7)",
            )

    def _came(self, content: bytes, delivery: Delivery | None) -> None:
        error: Refused | None = None
        try:
            request = self._node.read(content)
        except CodecError as malformed:
            self._not_taken(
                delivery, Refused(ErrorCode.DECODE_ERROR, f"this is not an AMQP message: {malformed}")
            )
            return
        except RequestError as bad:
            request, error = bad.request, Refused(code_of(bad.condition), str(bad))
        self._waiting.append(_Waiting(request, delivery, error))
        if not self._is_working:
            self._is_working = True
            self._client.spawn(self._work())

    def _not_taken(self, delivery: Delivery | None, refused: Refused) -> None:
        """Reject a message that cannot be answered."""
        self._warn(refused)
        if self._is_closed:
            return
        if delivery is None:
            self.refuse(refused)
        else:
            self._tell(delivery, Delivery.REJECTED, refused)

    # --- and are answered -------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        try:
            while self._waiting and not self._is_closed:
                await self._serve(self._waiting.popleft())
        finally:
            self._is_working = False

    async def _serve(self, waiting: _Waiting) -> None:
        request = waiting.request
        if self._answers_of(request) is None:
            self._not_taken(
                waiting.delivery,
                Refused(
                    ErrorCode.PRECONDITION_FAILED,
                    f"there is no link for the answer: attach a receiver from {self.node_address!r}, of the same name "
                    "where links are paired, else with the request's reply-to as its target",
                ),
            )
            return
        answer = await self._answer(request, waiting.error)
        if self._is_closed:
            return
        if waiting.delivery is not None:
            waiting.delivery.update(Delivery.ACCEPTED)
            waiting.delivery.settle()
        answers = self._answers_of(request)
        if answers is None:
            self._answered()
        else:
            answers.send(answer, self._answered)
        self._output.schedule_flush()

    async def _answer(self, request: Request, error: Refused | None) -> bytes:
        if error is not None:
            return self._refusal_of(request, error)
        try:
            result = await self._perform(self._client, request.command)
        except Refused as refused:
            return self._refusal_of(request, refused)
        return self._node.answer(request, result)

    def _refusal_of(self, request: Request, refused: Refused) -> bytes:
        REFUSALS[refused.code.condition] += 1
        self._warn(refused)
        return self._node.refuse(request, refused.code.condition, refused.text)

    def _answers_of(self, request: Request) -> AnswerLink | None:
        """The link that the answer to a request goes to."""
        pair = self.link if self._is_paired else None
        for attached in self._links.attached.values():
            if not isinstance(attached, AnswerLink) or attached.node_address != self.node_address:
                continue
            if attached.is_paired_with(pair) if pair is not None else attached.is_for(request.reply_to):
                return attached
        return None

    def _answered(self) -> None:
        if not self._is_closed:
            self.link.flow(1)

    def _warn(self, refused: Refused) -> None:
        self._log.warning(
            "request_refused",
            **{log_keys.LINK: self._links.names.of(self.link), log_keys.ADDRESS: self.node_address},
            **reason_keys(refused),
        )

    # --- the link -------------------------------------------------------------------------------------------------

    def detached(self, *, closed: bool) -> None:
        super().detached(closed=closed)
        self._waiting.clear()


class AnswerLink(BaseLink):
    """
    A link that answers go out on. They go settled, as there is credit and room for them.

    Args:
        paired: Whether it is one of a pair of links: requests come in on the other.
    """

    kind = "answers"

    def __init__(self, link: Link, client: Client, *, paired: bool) -> None:
        super().__init__(link, client)
        self._is_paired = paired
        self._waiting: deque[tuple[bytes, Callable[[], None]]] = deque()
        self._is_closed = False
        self._sent = 0

    @property
    def outgoing(self) -> Sending:
        return self

    @property
    def _sent_count(self) -> int:
        return self._sent

    @property
    def node_address(self) -> str:
        """The node, as the peer spells it."""
        return str(self.link.remote_source.address)

    def is_paired_with(self, requests: Link) -> bool:
        """Whether it is the other link of a pair (HTTP over AMQP 1.0, link pairing)."""
        if not self._is_paired or self.link.session != requests.session:
            return False
        return self._links.names.of(self.link) == self._links.names.of(requests)

    def is_for(self, reply_to: str | None) -> bool:
        """Whether this reply-to names it: by its target, or by its name if it has no target."""
        return (
            reply_to is not None
            and (self.link.remote_target.address or self._links.names.of(self.link)) == reply_to
        )

    def send(self, answer: bytes, sent: Callable[[], None]) -> None:
        """Send an answer as soon as possible, then call ``sent``; also if the link ends before that."""
        self._waiting.append((answer, sent))
        self.writable()

    def writable(self) -> None:
        """Send what waits, as there is credit and room for it."""
        link, waiting, output = self.link, self._waiting, self._output
        while waiting and not self._is_closed and link.credit > 0:
            if output.free_bytes <= 0:
                self._links.wait_for_output(self)
                break
            answer, sent = waiting.popleft()
            self._sent += 1
            delivery = link.delivery(str(self._sent))
            link.send(answer)
            link.advance()
            delivery.settle()
            sent()
        if not self._is_closed and not waiting and link.drain_mode:
            link.drained()
        output.schedule_flush()

    on_flow = writable

    def ready(self) -> None:
        """The attach is answered: the peer gives credit."""

    # --- events of the engine -----------------------------------------------------------------------------------

    def updated(self, collector: Any) -> None:
        """All deliveries go out settled: there is no disposition to take."""
        if not self._is_closed and self.link.current is not None:
            raise Refused(ErrorCode.NOT_ALLOWED, "a transfer came on a link that its sender receives on")
        LOOPS.drop(collector)

    def report(self) -> None:
        """There is nothing to report."""

    # --- the link -------------------------------------------------------------------------------------------------

    def detached(self, *, closed: bool) -> None:
        self._is_closed = True
        self._links.stop_waiting(self)
        while self._waiting:
            self._waiting.popleft()[1]()
