"""The scenarios for Event Hubs' clients: partitions, batches, every kind of start, owner levels, checkpoints.

The first sender or receiver makes the hub, which is named after its scenario.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from interop.client import Run
from interop.scenarios import MEGABYTE, SILENCE, Trial, check, equal


def read(trial: Trial, count: int, start: str, **options: object) -> Run:
    """Receive ``count`` events; wait for the end."""
    return trial.start("events", trial.address(), count=count, start=start, **options).ok()


def reading(trial: Trial, count: int, start: str = "beginning", **options: object) -> Run:
    """A receiver that is attached, and runs on."""
    run = trial.start("events", trial.address(), count=count, start=start, timeout=30, **options)
    run.until("attached")
    return run


def hub_and_partition(trial: Trial) -> None:
    """The properties of a hub: it has one partition; and of that partition: where it begins and ends."""
    trial.send(trial.address(), 3)
    sequences = [line["sequence"] for line in read(trial, 3, "beginning").of("message")]
    run = trial.start("properties", trial.address()).ok()
    (hub,), (partition,) = run.of("hub"), run.of("partition")
    equal("hub", (hub["name"], hub["partitions"]), (trial.name, ["0"]))
    equal("begin", partition["begin"], sequences[0])
    equal("end", (partition["last"], partition["offset"]), (sequences[-1], str(sequences[-1])))
    check(not partition["empty"], "the partition says that it is empty")


def empty_partition(trial: Trial) -> None:
    """A hub that nothing was sent to: its partition is empty."""
    read(trial, 1, "beginning", timeout=SILENCE)
    (partition,) = trial.start("properties", trial.address()).ok().of("partition")
    equal("end", (partition["empty"], partition["last"]), (True, -1))


def batch_of_events(trial: Trial) -> None:
    """Five events in one batch: each arrives by itself, with its own sequence number and the batch's partition key."""
    sent = trial.send(trial.address(), 5, together=True, key="k-1")
    lines = read(trial, 5, "beginning").of("message")
    equal("bodies", [line["body"] for line in lines], sent)
    equal("keys", {line["key"] for line in lines}, {"k-1"})
    first = lines[0]["sequence"]
    equal("sequence numbers", [line["sequence"] for line in lines], list(range(first, first + 5)))
    equal("numbers", [line["n"] for line in lines], list(range(5)))


def large_event(trial: Trial) -> None:
    """An event of a megabyte."""
    trial.send(trial.address(), 1, size=MEGABYTE)
    equal("size", [line["size"] for line in read(trial, 1, "beginning").of("message")], [MEGABYTE])


def events_from_beginning(trial: Trial) -> None:
    """A partition from its first event, by any number of consumer groups: nothing is taken away."""
    sent = trial.send(trial.address(), 5)
    equal("read", read(trial, 5, "beginning").bodies, sent)
    equal("read by another group", read(trial, 5, "beginning", group="audit").bodies, sent)


def events_from_latest(trial: Trial) -> None:
    """A partition from the next event on: no history."""
    trial.send(trial.address(), 2, "old")
    run = reading(trial, 2, "latest")
    sent = trial.send(trial.address(), 2, "new")
    equal("read", run.ok().bodies, sent)


def events_from_offset(trial: Trial) -> None:
    """Events after an offset."""
    sent = trial.send(trial.address(), 5)
    offset = read(trial, 5, "beginning").of("message")[2]["offset"]
    equal("behind", read(trial, 9, f"offset:{offset}", timeout=SILENCE).bodies, sent[3:])


def events_from_offset_inclusive(trial: Trial) -> None:
    """Events from an offset on."""
    sent = trial.send(trial.address(), 5)
    offset = read(trial, 5, "beginning").of("message")[2]["offset"]
    equal("from", read(trial, 9, f"offset:{offset}", inclusive=True, timeout=SILENCE).bodies, sent[2:])


def events_from_sequence_number(trial: Trial) -> None:
    """Events after a sequence number, or, inclusive, from it on."""
    sent = trial.send(trial.address(), 5)
    number = read(trial, 5, "beginning").of("message")[2]["sequence"]
    equal("behind", read(trial, 9, f"sequence:{number}", timeout=SILENCE).bodies, sent[3:])
    equal("from", read(trial, 9, f"sequence:{number}", inclusive=True, timeout=SILENCE).bodies, sent[2:])


def _two_times(trial: Trial) -> tuple[list[str], list[int]]:
    """Three events at one time and two at a later one; the bodies, and when each arrived."""
    sent = trial.send(trial.address(), 3, "old", together=True)
    time.sleep(0.05)
    sent += trial.send(trial.address(), 2, "new", together=True)
    return sent, [line["enqueued"] for line in read(trial, 5, "beginning").of("message")]


def events_from_enqueued_time(trial: Trial) -> None:
    """Events that arrived after a time, exact to the event."""
    sent, times = _two_times(trial)
    equal("read", read(trial, 9, f"date:{times[2]}", timeout=SILENCE).bodies, sent[3:])


def events_from_enqueued_time_inclusive(trial: Trial) -> None:
    """Events that arrived at a time or after it."""
    sent, times = _two_times(trial)
    found = read(trial, 9, f"date:{times[3]}", inclusive=True, timeout=SILENCE).bodies
    equal("read", found, sent[3:])


def events_into_live(trial: Trial) -> None:
    """History first, then what is sent meanwhile: no gap, nothing twice."""
    sent = trial.send(trial.address(), 3, "old")
    run = trial.start("events", trial.address(), count=6, start="beginning", timeout=30)
    run.until("message", 3)
    sent += trial.send(trial.address(), 3, "new")
    equal("read", run.ok().bodies, sent)


def owner_level_steals(trial: Trial) -> None:
    """A receiver of a higher owner level takes the partition over; the other receiver is told so."""
    sent = trial.send(trial.address(), 2)
    old = reading(trial, 9, level=1)
    equal("read by the new one", read(trial, 2, "beginning", level=2).bodies, sent)
    trial.refused("owner level stolen", old.error(), "", "owner level.*2 took over")


def lower_owner_level(trial: Trial) -> None:
    """A receiver of a lower owner level is refused."""
    trial.send(trial.address(), 1)
    reading(trial, 9, level=2)
    run = trial.start("events", trial.address(), start="beginning", level=1)
    trial.refused("lower owner level", run.error(), "", "owner level.*2 reads")


def no_owner_level(trial: Trial) -> None:
    """A receiver without an owner level is refused next to one that has a level, but not in another consumer group."""
    sent = trial.send(trial.address(), 1)
    reading(trial, 9, level=1)
    run = trial.start("events", trial.address(), start="beginning")
    trial.refused("no owner level", run.error(), "", "without an owner level")
    equal("read by another group", read(trial, 1, "beginning", group="audit").bodies, sent)


def checkpoint_and_resume(trial: Trial) -> None:
    """A program with a checkpoint goes on after it, wherever else it is told to start."""
    sent = trial.send(trial.address(), 5)
    folder = trial.programs.enter_context(tempfile.TemporaryDirectory(prefix="rewind-checkpoints-"))
    store = Path(folder) / "checkpoint.json"
    equal("read", read(trial, 3, "beginning", store=store).bodies, sent[:3])
    equal("read on", read(trial, 9, "beginning", store=store, timeout=SILENCE).bodies, sent[3:])


def receiver_over_a_restart(trial: Trial) -> None:
    """The gateway restarts under a receiver, which goes on after the last event it saw."""
    sent = trial.send(trial.address(), 3, "before")
    run = trial.start("events", trial.address(), count=6, start="beginning", timeout=40, reconnect=True)
    run.until("message", 3)
    trial.gateway.restart()
    sent += trial.send(trial.address(), 3, "after", reconnect=True)
    equal("read", run.ok().bodies, sent)


def no_such_hub(trial: Trial) -> None:
    """A hub that does not exist and cannot be made: names that begin with # are the gateway's own."""
    error = trial.start("properties", "#no-such-hub").error()
    trial.refused("no such hub", error, "", "there is no .* '#no-such-hub'")


def no_such_partition(trial: Trial) -> None:
    """A partition that the hub does not have."""
    trial.send(trial.address(), 1)
    run = trial.start("events", trial.address(), start="beginning", partition=7)
    trial.refused("no such partition", run.error(), "", "there is no partition '7'|Wrong partition id:7")


def bad_position(trial: Trial) -> None:
    """An offset that is not valid is refused in words, not ignored."""
    trial.send(trial.address(), 1)
    run = trial.start("events", trial.address(), start="offset:yesterday")
    trial.refused("bad position", run.error(), "", "'?yesterday'? is invalid")


def position_beyond_the_log(trial: Trial) -> None:
    """A sequence number that no event has yet: the position of another hub, or of this one before it was recreated."""
    trial.send(trial.address(), 1)
    run = trial.start("events", trial.address(), start="sequence:123456789")
    trial.refused("position beyond the log", run.error(), "", "not in the replay log")


def enqueued_time_in_the_future(trial: Trial) -> None:
    """A time that has not come yet."""
    trial.send(trial.address(), 1)
    tomorrow = (time.time_ns() // 1_000_000) + 86_400_000
    run = trial.start("events", trial.address(), start=f"date:{tomorrow}")
    trial.refused("enqueued time in the future", run.error(), "", "in the future")


SCENARIOS: tuple[Callable[[Trial], None], ...] = (
    hub_and_partition,
    empty_partition,
    batch_of_events,
    large_event,
    events_from_beginning,
    events_from_latest,
    events_from_offset,
    events_from_offset_inclusive,
    events_from_sequence_number,
    events_from_enqueued_time,
    events_from_enqueued_time_inclusive,
    events_into_live,
    owner_level_steals,
    lower_owner_level,
    no_owner_level,
    checkpoint_and_resume,
    receiver_over_a_restart,
    no_such_hub,
    no_such_partition,
    bad_position,
    position_beyond_the_log,
    enqueued_time_in_the_future,
)
