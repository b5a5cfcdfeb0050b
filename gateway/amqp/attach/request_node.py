"""
An attach whose remote terminus is a request node of a dialect: a link for requests, or one for their answers.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from proton import Link, symbol

from gateway import log_keys
from gateway.amqp.attach.client import Client
from gateway.amqp.attach.link_setup import LinkSetup, ReadyLink
from gateway.amqp.attach.request import AttachRequest
from gateway.amqp.dialects.hooks import ServedNode
from gateway.amqp.links.answer_link import AnswerLink
from gateway.amqp.links.request_link import MAX_REQUEST_BYTES, RequestLink

PAIRED: Final = symbol("paired")
"""Property of both links of a pair (HTTP over AMQP 1.0, link pairing)."""


class RequestNodeTerminus(LinkSetup):
    """
    A request node as a target, for requests, or as a source, for their answers.

    Args:
        served: The node, and who carries out what is asked of it.
    """

    def __init__(self, client: Client, request: AttachRequest, served: ServedNode) -> None:
        self._client = client
        self._request = request
        self._link = request.link
        self._served = served
        self._is_paired = False

    async def bind(self) -> ReadyLink:
        client, link = self._client, self._link
        paired = self._is_paired = self._request.properties.get(PAIRED) is True
        if self._request.publishes:
            served = self._served
            perform = partial(served.perform, client)
            return RequestLink(link, client.carrier, served.node, perform, client.spawn, paired=paired)
        return AnswerLink(link, client.carrier, paired=paired)

    def reply(self) -> None:
        link = self._link
        link.source.copy(link.remote_source)
        link.target.copy(link.remote_target)
        link.rcv_settle_mode = Link.RCV_FIRST
        if self._is_paired:
            link.properties = {PAIRED: True}
        if self._request.publishes:
            link.snd_settle_mode = link.remote_snd_settle_mode
            link.max_message_size = MAX_REQUEST_BYTES
        else:
            # An answer is told once: who does not get it asks again.
            link.snd_settle_mode = Link.SND_SETTLED

    def log_values(self) -> dict[str, Any]:
        return {log_keys.ADDRESS: str(self._request.address)}
