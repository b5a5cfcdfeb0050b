"""
Links to the request nodes of a dialect: requests come in on one, answers go out on another.

The answer to a request goes to the peer's receiving link from the same node: the one of the same name and session
where both have the property ``paired`` (link pairing, as HTTP over AMQP 1.0 uses it), else the one whose target, or
without one whose name, is the request's reply-to. Requests of one link are carried out in their order, each durable
before it is answered.

Invariant: a link has at most ``WINDOW`` requests that are not answered, those whose answers wait for credit or for room
in the connection's output among them: credit for the next goes with an answer. A message that is no request is answered
where that can be done, else rejected, or its link is detached where it came settled: it costs its sender, and nobody
else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from proton import Delivery, Link, symbol

from amqp_ext.codec import CodecError
from amqp_ext.request_nodes import Request, RequestError
from gateway import log_keys
from gateway.amqp.attach.authorization import Denied
from gateway.amqp.attach.request import properties_of
from gateway.amqp.engine.conditions import condition_of
from gateway.amqp.links.outgoing import detach
from gateway.core.errors import ErrorCode, Refused
from gateway.vpn.counters import REFUSALS

if TYPE_CHECKING:
    from gateway.amqp.connection import Connection
    from gateway.amqp.dialects.hooks import ServedNode

WINDOW: Final = 8
"""Requests of one link that may wait for their answers; as many as RabbitMQ takes."""

MAX_REQUEST_BYTES: Final = 64 * 1024
"""Largest request: a token or the arguments of a queue are a fraction of it."""

PAIRED: Final = symbol("paired")


def attach_to_node(connection: Connection, link: Link, served: ServedNode) -> None:
    """Answer an attach whose remote terminus is a request node."""
    paired = properties_of(link).get(PAIRED) is True
    link.source.copy(link.remote_source)
    link.target.copy(link.remote_target)
    link.rcv_settle_mode = Link.RCV_FIRST
    if paired:
        link.properties = {PAIRED: True}
    attached: RequestLink | AnswerLink
    if link.is_receiver:
        link.snd_settle_mode = link.remote_snd_settle_mode
        link.max_message_size = MAX_REQUEST_BYTES
        requests = attached = RequestLink(connection, link, served, paired=paired)
        connection.links.incoming[requests.key] = requests
    else:
        # An answer is told once: who does not get it asks again.
        link.snd_settle_mode = Link.SND_SETTLED
        answers = attached = AnswerLink(connection, link, paired=paired)
        connection.links.outgoing[answers.key] = answers
    connection.attached[link] = attached
    link.open()
    if link.is_receiver:
        link.flow(WINDOW)
    connection.log_event(
        "link_attached", **{log_keys.LINK: link.name, log_keys.ADDRESS: attached.node_address}
    )


class _Waiting:
    """A request on its way."""

    __slots__ = ("delivery", "error", "request")

    def __init__(self, request: Request, delivery: Delivery | None, error: Refused | None) -> None:
        self.request = request
        self.delivery = delivery
        """To be settled; None where it came settled."""
        self.error = error
        """Why it is not carried out, where that is known already."""


class RequestLink:
    """A link that requests come in on."""

    def __init__(self, connection: Connection, link: Link, served: ServedNode, *, paired: bool) -> None:
        self._connection = connection
        self._link = link
        self._node, self._perform = served
        self._is_paired = paired
        self._waiting: deque[_Waiting] = deque()
        self._is_working = False
        self._is_closed = False

    @property
    def key(self) -> Any:
        return self._link._impl

    @property
    def node_address(self) -> str:
        """The node, as the peer spells it."""
        return str(self._link.remote_target.address)

    # --- requests come --------------------------------------------------------------------------------------------

    def receive(self) -> None:
        """Take every request that is complete."""
        link = self._link
        while not self._is_closed and (delivery := link.current) is not None:
            size = delivery.pending
            if size > MAX_REQUEST_BYTES:
                self.refuse(
                    Refused(
                        ErrorCode.MESSAGE_TOO_LARGE,
                        f"a request of {size} bytes or more; at most {MAX_REQUEST_BYTES} are taken",
                    )
                )
                return
            if delivery.aborted:
                link.advance()
                delivery.settle()
                link.flow(1)
                continue
            if delivery.partial:
                break
            content = bytes(link.recv(size) or b"") if size else b""
            is_settled = delivery.settled
            link.advance()
            if is_settled:
                delivery.settle()
            self._take(content, None if is_settled else delivery)
        if not self._is_closed and link.credit < 0:
            raise Refused(
                ErrorCode.TRANSFER_LIMIT,
                "transfers came beyond the credit of their link (AMQP 1.0 section 2.6.7)",
            )

    def _take(self, content: bytes, delivery: Delivery | None) -> None:
        error: Refused | None = None
        try:
            request = self._node.read(content)
        except CodecError as malformed:
            self._not_taken(
                delivery, Refused(ErrorCode.DECODE_ERROR, f"this is no AMQP message: {malformed}")
            )
            return
        except RequestError as bad:
            request, error = bad.request, Refused(_code_of(bad.condition), str(bad))
        self._waiting.append(_Waiting(request, delivery, error))
        if not self._is_working:
            self._is_working = True
            self._connection.spawn(self._work())

    def _not_taken(self, delivery: Delivery | None, refused: Refused) -> None:
        """There is no answering this one."""
        self._warn(refused)
        if self._is_closed:
            return
        if delivery is None:
            self.refuse(refused)
            return
        delivery.local.condition = condition_of(refused)
        delivery.update(Delivery.REJECTED)
        delivery.settle()
        self._link.flow(1)
        self._connection.schedule_flush()

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
        self._connection.schedule_flush()

    async def _answer(self, request: Request, error: Refused | None) -> bytes:
        try:
            if error is not None:
                raise error
            result = await self._perform(self._connection, request.command)
        except Refused as refused:
            REFUSALS[refused.code.condition] += 1
            self._warn(refused)
            return self._node.refuse(request, refused.code.condition, refused.text)
        return self._node.answer(request, result)

    def _answers_of(self, request: Request) -> AnswerLink | None:
        """The link that the answer to a request goes to."""
        pair = self._link if self._is_paired else None
        for attached in self._connection.attached.values():
            if not isinstance(attached, AnswerLink) or attached.node_address != self.node_address:
                continue
            if attached.is_paired_with(pair) if pair is not None else attached.is_for(request.reply_to):
                return attached
        return None

    def _answered(self) -> None:
        if not self._is_closed:
            self._link.flow(1)

    def _warn(self, refused: Refused) -> None:
        self._connection.warn(
            "request_refused",
            **{
                log_keys.LINK: self._connection.names.of(self._link),
                log_keys.ADDRESS: self.node_address,
                log_keys.CONDITION: refused.code.condition,
                log_keys.RULE: refused.rule if isinstance(refused, Denied) else None,
                log_keys.REASON: refused.text,
            },
        )

    # --- the link -------------------------------------------------------------------------------------------------

    def detached(self, *, closed: bool) -> None:
        self._is_closed = True
        self._waiting.clear()

    def lost(self) -> None:
        self.detached(closed=False)

    def refuse(self, refused: Refused) -> None:
        detach(self._connection, self._link, refused)


class AnswerLink:
    """A link that answers go out on. They go settled, as there is credit and room for them."""

    def __init__(self, connection: Connection, link: Link, *, paired: bool) -> None:
        self._connection = connection
        self._link = link
        self._is_paired = paired
        self._waiting: deque[tuple[bytes, Callable[[], None]]] = deque()
        self._is_closed = False
        self._sent = 0

    @property
    def key(self) -> Any:
        return self._link._impl

    @property
    def node_address(self) -> str:
        """The node, as the peer spells it."""
        return str(self._link.remote_source.address)

    def is_paired_with(self, requests: Link) -> bool:
        """Whether it is the other link of a pair (HTTP over AMQP 1.0, link pairing)."""
        if not self._is_paired or self._link.session != requests.session:
            return False
        names = self._connection.names
        return names.of(self._link) == names.of(requests)

    def is_for(self, reply_to: str | None) -> bool:
        """Whether answers to requests with this reply-to are for it: by its target, or by its name without one."""
        return (
            reply_to is not None
            and (self._link.remote_target.address or self._connection.names.of(self._link)) == reply_to
        )

    def send(self, answer: bytes, sent: Callable[[], None]) -> None:
        """Send an answer when that is possible, then call ``sent``; also when it never will be."""
        self._waiting.append((answer, sent))
        self._send_waiting()

    def _send_waiting(self) -> None:
        connection, link, waiting = self._connection, self._link, self._waiting
        while waiting and not self._is_closed and link.credit > 0:
            if connection.free_bytes <= link.session.outgoing_bytes:
                connection.waiting_for_output[self] = None
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
        connection.schedule_flush()

    def writable(self) -> None:
        self._send_waiting()

    # --- what the engine says of it -----------------------------------------------------------------------------

    def updated(self, delivery: Any) -> None:
        """Nothing is unsettled here: the peer has nothing to say of a delivery."""
        if not self._is_closed and self._link.current is not None:
            raise Refused(ErrorCode.NOT_ALLOWED, "a transfer came on a link that its sender receives on")

    def report(self) -> None:
        """There is nothing to report."""

    def on_flow(self) -> None:
        self._send_waiting()

    # --- the link -------------------------------------------------------------------------------------------------

    def detached(self, *, closed: bool) -> None:
        self._is_closed = True
        self._connection.waiting_for_output.pop(self, None)
        while self._waiting:
            self._waiting.popleft()[1]()

    def lost(self) -> None:
        self.detached(closed=False)

    def refuse(self, refused: Refused) -> None:
        detach(self._connection, self._link, refused)


def _code_of(condition: str) -> ErrorCode:
    """The row of the table of errors with this condition and no replay-error."""
    return next(code for code in ErrorCode if code.condition == condition and code.replay_error is None)
