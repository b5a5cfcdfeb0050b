"""Event Hubs' nodes and batches: requests and envelopes read, answers written."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from amqp_ext.codec import CodecError, Int, Symbol
from amqp_ext.event_hubs.frames import events_of
from amqp_ext.event_hubs.management import (
    CbsNode,
    HubState,
    ManagementNode,
    PartitionState,
    PutToken,
    ReadHub,
    ReadPartition,
)
from amqp_ext.message import sections
from amqp_ext.request_nodes import RequestError, value_of
from tests.support.messages import section

ID = UUID(int=7)


def request(body: Any, reply_to: str | None = None, **asked: Any) -> bytes:
    """A request as the clients send it."""
    found = section(sections.PROPERTIES, [ID, None, None, None, reply_to])
    found += section(sections.APPLICATION_PROPERTIES, dict(asked.items()))
    return found + section(sections.DATA if isinstance(body, bytes) else sections.AMQP_VALUE, body)


def said(answer: bytes) -> tuple[int, str, Any]:
    """Status, description and body of an answer to the request with our id."""
    properties = sections.application_properties(answer)
    assert sections.properties(answer).correlation_id == ID
    return properties["status-code"], properties["status-description"], value_of(answer)


@pytest.mark.parametrize("body", ["a token", b"a token"])
def test_a_token_is_put(body: Any) -> None:
    """Operation, type and the token itself, as a string or as data."""
    asked = request(body, "me", operation="put-token", type="jwt", name="sb://h/hub")
    read = CbsNode().read(asked)
    assert (read.command, read.id, read.reply_to) == (PutToken("a token", "jwt"), ID, "me")
    assert said(CbsNode().answer(read, None)) == (202, "Accepted", None)


def test_a_request_without_reply_to_is_answered_by_the_name_of_its_node() -> None:
    """The Python client's receiving link has the node as its target, and its requests no reply-to."""
    read = ManagementNode().read(request("", operation="READ", type="com.microsoft:eventhub", name="hub"))
    assert (read.command, read.reply_to) == (ReadHub("hub"), "$management")


def test_a_hub_is_described() -> None:
    """Name, creation and the one partition."""
    node = ManagementNode()
    read = node.read(request(b"[]", "me", operation="READ", type="com.microsoft:eventhub", name="hub"))
    status, _, found = said(node.answer(read, HubState("hub", 1_000)))
    assert (status, found["name"], found["created_at"]) == (200, "hub", 1_000)
    assert (found["partition_count"], list(found["partition_ids"])) == (1, ["0"])
    # A signed integer: the Go client takes none without it, and no other type.
    assert (found["georeplication_factor"], type(found["georeplication_factor"])) == (1, Int)


@pytest.mark.parametrize(
    ("state", "numbers"),
    [
        (PartitionState("hub", 3, 9, 5_000), (3, 9, "9", 5_000, False)),
        (PartitionState("hub", 10, None, 0), (10, -1, "-1", 0, True)),
    ],
)
def test_a_partition_is_described(state: PartitionState, numbers: tuple[Any, ...]) -> None:
    """Where it begins and ends; an empty one ends at -1, as Event Hubs has it."""
    node = ManagementNode()
    kind = "com.microsoft:partition"
    read = node.read(request("", operation="READ", type=kind, name="hub", partition="0"))
    assert read.command == ReadPartition("hub", "0")
    _, _, found = said(node.answer(read, state))
    keys = ("begin_sequence_number", "last_enqueued_sequence_number", "last_enqueued_offset")
    assert tuple(found[key] for key in (*keys, "last_enqueued_time_utc", "is_partition_empty")) == numbers
    # The Rust client takes no answer without them, where nothing is replicated neither.
    assert (found["begin_sequence_number_epoch"], found["last_enqueued_sequence_number_epoch"]) == (-1, -1)


def test_a_token_comes_with_a_request_and_is_not_shown() -> None:
    """Some clients put none at $cbs to read about a hub. A log line about the request must not hold it."""
    asked = {"operation": "READ", "type": "com.microsoft:eventhub", "name": "hub", "security_token": "secret"}
    read = ManagementNode().read(request("", **asked))
    assert read.command == ReadHub("hub", "secret")
    assert "secret" not in repr(read)


@pytest.mark.parametrize(
    ("node", "asked", "status", "words"),
    [
        (CbsNode(), {"operation": "delete-token", "type": "jwt"}, 501, "put-token"),
        (CbsNode(), {"type": "jwt"}, 400, "'operation'"),
        (CbsNode(), {"operation": "put-token"}, 400, "'type'"),
        (ManagementNode(), {"operation": "DELETE", "type": "com.microsoft:eventhub"}, 501, "READ"),
        (ManagementNode(), {"operation": "READ", "type": "com.microsoft:queue"}, 501, "can be read"),
        (ManagementNode(), {"operation": "READ", "type": "com.microsoft:eventhub"}, 400, "'name'"),
        (
            ManagementNode(),
            {"operation": "READ", "type": "com.microsoft:eventhub", "name": "hub", "security_token": 7},
            400,
            "'security_token'",
        ),
    ],
)
def test_a_bad_request_is_answered(node: Any, asked: dict[str, Any], status: int, words: str) -> None:
    """The answer says what would have been right."""
    with pytest.raises(RequestError) as bad:
        node.read(request("text", **asked))
    found, text, _ = said(node.refuse(bad.value.request, bad.value.condition, str(bad.value)))
    assert (found, words in text) == (status, True)


# --- batches ----------------------------------------------------------------------------------------------------------


def event(text: str, key: str | None = None) -> bytes:
    """An event, with a partition key of its own or without."""
    front = section(sections.MESSAGE_ANNOTATIONS, {Symbol("x-opt-partition-key"): key}) if key else b""
    return front + section(sections.DATA, text.encode())


def batch(*events: bytes, key: str | None = None) -> bytes:
    """The envelope of these."""
    front = section(sections.MESSAGE_ANNOTATIONS, {Symbol("x-opt-partition-key"): key}) if key else b""
    return front + b"".join(section(sections.DATA, one) for one in events)


def test_events_of_a_batch_stay_as_they_are() -> None:
    """Each data section is one message, bit for bit."""
    events = [event("a"), event("b", "k"), section(sections.AMQP_VALUE, {"deep": [1, 2]})]
    assert events_of(batch(*events)) == events


def test_the_partition_key_of_a_batch_is_its_events() -> None:
    """Those that have none get the envelope's; their bare message stays as it was."""
    first, second = events_of(batch(event("a"), event("b", "own"), key="all"))
    assert sections.message_annotations(first) == {"x-opt-partition-key": "all"}
    assert first.endswith(event("a"))
    assert second == event("b", "own")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (section(sections.AMQP_VALUE, "text"), "not value"),
        (section(sections.PROPERTIES, []), "not empty"),
        (batch(event("a"), b"no message"), "event 1 of the batch"),
        (batch(b""), "event 0 of the batch"),
        (batch(event("a")) + b"more", "."),
    ],
)
def test_what_is_no_batch_is_refused(content: bytes, words: str) -> None:
    """One bad event is enough: a batch is taken as a whole or not at all."""
    with pytest.raises(CodecError, match=words):
        events_of(content)
