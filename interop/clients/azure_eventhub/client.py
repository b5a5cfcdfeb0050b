"""
The client program on Azure's Event Hubs client for Python; see interop/client.py for its command line.

Knows nothing of the gateway: what is here, a user of the library would write for the Event Hubs emulator.
``queue://NAME`` is the event hub NAME. Beside the verbs of all programs:

==============  ====================================================================================================
``properties``  prints lines ``hub`` and ``partition`` with what the library says of them
``events``      receives from ``--start beginning|latest|offset:TEXT|sequence:N|date:MS``, ``--inclusive``;
                ``--level N`` is an owner level, ``--group NAME`` the consumer group, ``--partition`` another one;
                ``--store FILE`` keeps checkpoints, of every event
==============  ====================================================================================================

``send`` sends one event in each batch, or with ``--together`` all in one; ``--key`` is a partition key.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from azure.eventhub import (
    CheckpointStore,
    EventData,
    EventHubConsumerClient,
    EventHubProducerClient,
    PartitionContext,
)

GIVE_UP = {"retry_total": 0}
PATIENCE = {"retry_total": 8, "retry_backoff_factor": 0.2, "retry_backoff_max": 2}


def arguments() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("verb")
    parser.add_argument("--url", required=True)
    parser.add_argument("--address", default="")
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=5)
    parser.add_argument("--body", default="message")
    parser.add_argument("--size", type=int, default=0)
    parser.add_argument("--reconnect", action="store_true")
    parser.add_argument("--start", default="latest")
    parser.add_argument("--inclusive", action="store_true")
    parser.add_argument("--level", type=int)
    parser.add_argument("--group", default="$Default")
    parser.add_argument("--partition", default="0")
    parser.add_argument("--store", type=Path)
    parser.add_argument("--together", action="store_true")
    parser.add_argument("--key")
    return parser.parse_args()


def say(event: str, **values: Any) -> None:
    """One line of JSON, at once."""
    print(json.dumps({"event": event, **values}), flush=True)


def say_error(error: BaseException) -> int:
    """What the user of the library sees."""
    inner = getattr(error, "inner_exception", None) or error.__cause__ or error.__context__ or error
    condition = getattr(inner, "condition", None) or getattr(error, "error", None)
    if isinstance(condition, bytes):
        condition = condition.decode()
    name = getattr(condition, "value", condition)
    say(
        "error",
        kind=type(error).__name__,
        condition=name.decode() if isinstance(name, bytes) else name and str(name),
        info={},
        text=str(error),
    )
    return 1


def connection_string(options: argparse.Namespace) -> str:
    """As users of the emulator have it."""
    hub = options.address.removeprefix("queue://")
    return (
        f"Endpoint=sb://{urlsplit(options.url).netloc};SharedAccessKeyName=RootManageSharedAccessKey;"
        f"SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;EntityPath={hub}"
    )


# ------------------------------------------------------------------------------------------------------------ send


def event(options: argparse.Namespace, number: int) -> EventData:
    """The event with this number: body, its number and a colour."""
    body = "x" * options.size if options.size else f"{options.body}-{number}"
    made = EventData(body)
    made.message_id = f"{options.body}-{number}"
    made.properties = {"n": number, "colour": "red" if number % 2 else "grün"}
    return made


def send(options: argparse.Namespace) -> int:
    """Batches, each accepted before the next is sent."""
    retries = PATIENCE if options.reconnect else GIVE_UP
    client = EventHubProducerClient.from_connection_string(connection_string(options), **retries)
    with client:
        say("attached")
        numbers = list(range(options.count))
        step = options.count if options.together else 1
        for at in range(0, options.count, step):
            batch = client.create_batch(partition_key=options.key) if options.key else client.create_batch()
            for number in numbers[at : at + step]:
                batch.add(event(options, number))
            client.send_batch(batch)
            for number in numbers[at : at + step]:
                say("sent", n=number, outcome="accepted")
    say("end", reason="count", count=options.count)
    return 0


# --------------------------------------------------------------------------------------------------------- receive


class FileStore(CheckpointStore):
    """Checkpoints in a file; one program at a time reads, and owns what it claims."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._owned: list[dict[str, Any]] = []

    def list_ownership(self, *_: Any, **__: Any) -> list[dict[str, Any]]:
        """What is owned."""
        return self._owned

    def claim_ownership(self, ownership_list: Any, **_: Any) -> list[dict[str, Any]]:
        """Every claim holds."""
        self._owned = [dict(one, etag="e", last_modified_time=time.time()) for one in ownership_list]
        return self._owned

    def update_checkpoint(self, checkpoint: Any, **_: Any) -> None:
        """The last one counts."""
        self._path.write_text(json.dumps(checkpoint))

    def list_checkpoints(self, *_: Any, **__: Any) -> list[dict[str, Any]]:
        """The last one, if there is any."""
        return [json.loads(self._path.read_text())] if self._path.exists() else []


def position(text: str) -> str | int | datetime:
    """A starting position as the library takes it."""
    kind, mark, value = text.partition(":")
    if not mark:
        return {"beginning": "-1", "latest": "@latest"}[text]
    if kind == "sequence":
        return int(value)
    return value if kind == "offset" else datetime.fromtimestamp(int(value) / 1000, tz=UTC)


def events(options: argparse.Namespace) -> int:
    """Events until there are enough, or none comes in time."""
    retries = PATIENCE if options.reconnect else GIVE_UP
    client = EventHubConsumerClient.from_connection_string(
        connection_string(options),
        consumer_group=options.group,
        checkpoint_store=FileStore(options.store) if options.store else None,
        load_balancing_interval=1,
        **retries,
    )
    ended = threading.Event()
    seen: dict[str, Any] = {"count": 0, "heard": time.monotonic(), "reason": "timeout", "status": 0}

    def end(reason: str, status: int = 0) -> None:
        if not ended.is_set():
            seen.update(reason=reason, status=status)
            ended.set()

    def on_event(context: PartitionContext, received: EventData | None) -> None:
        if ended.is_set():
            return
        if received is None:
            # Nothing came for a while: the link is there, or the library would have said so.
            if "attached" not in seen:
                seen["attached"] = True
                say("attached")
            return
        seen["heard"] = time.monotonic()
        seen["count"] += 1
        body = received.body_as_str()
        annotations = {
            (key.decode() if isinstance(key, bytes) else key): value
            for key, value in received.system_properties.items()
        }
        found = {
            (key.decode() if isinstance(key, bytes) else key): (
                value.decode() if isinstance(value, bytes) else value
            )
            for key, value in received.properties.items()
        }
        replay_id = annotations.get("x-opt-replay-id")
        say(
            "message",
            body=body if len(body) < 200 else None,
            size=len(body),
            n=found.get("n"),
            colour=found.get("colour"),
            redelivered=False,
            delivery_count=0,
            replay_id=replay_id.decode() if isinstance(replay_id, bytes) else replay_id,
            replay_end=annotations.get("x-opt-replay-end", False),
            offset=received.offset,
            sequence=received.sequence_number,
            enqueued=round(received.enqueued_time.timestamp() * 1000) if received.enqueued_time else None,
            key=received.partition_key.decode() if received.partition_key else None,
        )
        if options.store:
            context.update_checkpoint(received)
        if seen["count"] >= options.count:
            end("count")

    def on_error(_: PartitionContext | None, error: Exception) -> None:
        if not ended.is_set():
            end("error", say_error(error))

    def receive() -> None:
        try:
            client.receive(
                on_event=on_event,
                on_error=on_error,
                partition_id=None if options.store else options.partition,
                starting_position=position(options.start),
                starting_position_inclusive=options.inclusive,
                owner_level=options.level,
                max_wait_time=0.3,
            )
        except Exception as error:
            end("error", say_error(error))

    reading = threading.Thread(target=receive, daemon=True)
    reading.start()
    while not ended.wait(0.05):
        if time.monotonic() - seen["heard"] > options.timeout and ("attached" in seen or seen["count"]):
            end("timeout")
    client.close()
    reading.join(10)
    if seen["reason"] != "error":
        say("end", reason=seen["reason"], count=seen["count"])
    return int(seen["status"])


def properties(options: argparse.Namespace) -> int:
    """What the library says of the hub and its partitions."""
    client = EventHubConsumerClient.from_connection_string(
        connection_string(options), consumer_group=options.group, **GIVE_UP
    )
    with client:
        hub = client.get_eventhub_properties()
        say(
            "hub",
            name=hub["eventhub_name"],
            partitions=hub["partition_ids"],
            created=round(hub["created_at"].timestamp() * 1000),
        )
        found = client.get_partition_properties(options.partition)
        say(
            "partition",
            begin=found["beginning_sequence_number"],
            last=found["last_enqueued_sequence_number"],
            offset=found["last_enqueued_offset"],
            enqueued=round(found["last_enqueued_time_utc"].timestamp() * 1000),
            empty=found["is_empty"],
        )
    say("end", reason="count", count=0)
    return 0


def main(options: argparse.Namespace) -> int:
    """Do what the verb says; an error is printed as its user sees it."""
    try:
        return {"send": send, "properties": properties}.get(options.verb, events)(options)
    except Exception as error:
        return say_error(error)


if __name__ == "__main__":
    sys.exit(main(arguments()))
