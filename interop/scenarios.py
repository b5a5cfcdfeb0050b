"""The scenarios for every client. A scenario knows no client: it starts programs and looks at their lines.

Each scenario has a queue or topic of its own, named after it: scenarios do not interfere, and their order is free.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from urllib.parse import quote
from urllib.request import Request, urlopen

from interop.client import Client, Failed, Line, Run
from interop.gateway_process import GatewayProcess

SILENCE = 1.5  # seconds in which nothing must come
MEGABYTE = 1_000_000
GROUPED, GROUPS = 24, 8  # messages, and their groups
DELAY_MS = 2_000
RETRY_MS = 6_000
"""Long enough for a small program to start and to receive messages, on a busy machine."""


def check(holds: bool, sentence: str) -> None:
    """Raise Failed with the sentence unless the condition holds."""
    if not holds:
        raise Failed(sentence)


def equal(what: str, found: object, expected: object) -> None:
    """Raise Failed unless both are equal."""
    check(found == expected, f"{what}: {str(found)[:120]}, expected {str(expected)[:120]}")


@dataclass(slots=True)
class Trial:
    """One scenario with one client: starts its programs, and ends them all."""

    client: Client
    observer: Client
    """A client that shows annotations, where the one on trial does not."""
    gateway: GatewayProcess
    name: str
    programs: ExitStack
    remark: str = ""
    seen: dict[str, Line] = field(default_factory=dict)
    """By refusal: the error that the client's user saw."""
    runs: list[Run] = field(default_factory=list)
    """Programs that were started, in order."""

    def address(self, form: str = "queue://{}") -> str:
        """This trial's own address, in this form."""
        return form.format(self.name)

    def start(self, verb: str, address: str = "", *, by: Client | None = None, **options: object) -> Run:
        """Start a program; an option that is True is a flag, and None or False is left out."""
        client = by or self.client
        url = self.gateway.websocket_url if client.is_websocket else self.gateway.url
        if options.get("reconnect") and not client.is_websocket:
            url = self.gateway.failover_url
        command = [*client.command, verb, "--url", url, "--address", address]
        for key, value in options.items():
            if value is not None and value is not False:
                command += [f"--{key}"] if value is True else [f"--{key}", str(value)]
        self.runs.append(self.programs.enter_context(Run(command)))
        return self.runs[-1]

    def send(self, address: str, count: int, body: str = "m", **options: object) -> list[str]:
        """Publish messages, all of which must be accepted; return their bodies."""
        run = self.start("send", address, count=count, body=body, **options).ok()
        equal("outcomes", [line["outcome"] for line in run.of("sent")], ["accepted"] * count)
        return [f"{body}-{number}" for number in range(count)]

    def receive(self, address: str, count: int, **options: object) -> Run:
        """Receive ``count`` messages; wait for the end."""
        return self.start("receive", address, count=count, **options).ok()

    def make(self, **settings: object) -> None:
        """Create this trial's queue over HTTP."""
        url = f"{self.gateway.admin_url}/SEMP/v2/config/msgVpns/default/queues"
        asked = Request(url, json.dumps({"queueName": self.name, **settings}).encode())
        asked.add_header("Content-Type", "application/json")
        with urlopen(asked, timeout=60):
            pass

    def empty(self, address: str, **options: object) -> None:
        """Check that nothing comes from an address."""
        equal(f"left on {address}", self.receive(address, 1, timeout=SILENCE, **options).bodies, [])

    def replay(
        self, address: str, count: int, start: str, until: str | None = None, **options: object
    ) -> Run:
        """Start a replay in the way that this client can: by a filter, or by an option of the address."""
        if self.client.own_filter:
            return self.start("replay", address, count=count, start=start, until=until, **options)
        asked = f"{address}?replay-start={quote(start)}" + (f"&until={until}" if until else "")
        return self.start("receive", asked, count=count, **options)

    def ids(self, address: str, count: int) -> list[str]:
        """Replay ids of the messages published to an address, as the client shows them, or else the observer."""
        log = self.log_of(address)
        run = self.replay(log, count, "beginning").ok()
        found = [line["replay_id"] for line in run.of("message")]
        if not all(found):
            self.remark = "the library does not show message annotations; ids were read by another client"
            run = self.start("replay", log, by=self.observer, count=count, start="beginning").ok()
            found = [line["replay_id"] for line in run.of("message")]
        equal("messages in the log", len(found), count)
        return found

    @staticmethod
    def log_of(address: str) -> str:
        """The address at which the log of a queue or topic is read."""
        kind, _, name = address.partition("://")
        return f"log://#queue/{name}" if kind == "queue" else f"log://{name}"

    def refused(self, what: str, error: Line, condition: str, words: str) -> None:
        """Check that an error names its condition, in a field or in its text, and that the text says why."""
        self.seen[what] = error
        shown = f"{error.get('condition') or ''} {error['text']}"
        check(condition in shown, f"{what}: its user does not see {condition}, but: {shown[:160]}")
        check(
            bool(re.search(words, error["text"])), f"{what}: the text does not say why: {error['text'][:160]}"
        )


# ----------------------------------------------------------------------------------------------- queues, topics


def queue(trial: Trial) -> None:
    """Ten messages through a queue, in order, each once."""
    sent = trial.send(trial.address(), 10)
    equal("received", trial.receive(trial.address(), 10).bodies, sent)
    trial.empty(trial.address())


def large_message(trial: Trial) -> None:
    """A message of a megabyte, in several frames."""
    trial.send(trial.address(), 1, size=MEGABYTE)
    run = trial.receive(trial.address(), 1)
    equal("size", [line["size"] for line in run.of("message")], [MEGABYTE])


def competing(trial: Trial) -> None:
    """Two consumers of a queue share its messages, each is delivered to one of them."""
    consumers = [trial.start("receive", trial.address(), count=5, timeout=20) for _ in range(2)]
    for consumer in consumers:
        consumer.until("attached")
    sent = trial.send(trial.address(), 10)
    found = [body for consumer in consumers for body in consumer.ok().bodies]
    equal("received by both", sorted(found), sorted(sent))


def topic(trial: Trial) -> None:
    """A subscriber with a wildcard gets what is published while it is attached, and no history."""
    name = trial.address("topic://{}")
    trial.start("send", f"{name}/before", count=1).finish()
    subscriber = trial.start("receive", f"{name}/>", count=3, timeout=20)
    subscriber.until("attached")
    sent = trial.send(f"{name}/eu", 3)
    equal("received", subscriber.ok().bodies, sent)


def durable_subscription(trial: Trial) -> None:
    """A durable subscription keeps what is published without its subscriber, until that unsubscribes."""
    name = trial.address("topic://{}")
    terms = {"subscription": f"{trial.name}-durable", "durable": True, "container": trial.name}
    trial.receive(name, 0, **terms)
    sent = trial.send(name, 3)
    equal("received later", trial.receive(name, 3, **terms).bodies, sent)
    trial.send(name, 1, "given-up")
    trial.start("unsubscribe", name, **terms).ok()
    trial.empty(name, **terms)
    trial.start("unsubscribe", name, **terms).ok()


def shared_subscription(trial: Trial) -> None:
    """Two consumers of one subscription share its messages."""
    name = trial.address("topic://{}")
    terms = {"subscription": f"{trial.name}-shared", "shared": True}
    consumers = [
        trial.start("receive", name, count=5, timeout=20, container=trial.name, **terms) for _ in range(2)
    ]
    for consumer in consumers:
        consumer.until("attached")
    sent = trial.send(name, 10)
    found = [body for consumer in consumers for body in consumer.ok().bodies]
    equal("received by both", sorted(found), sorted(sent))


def shared_durable_subscription(trial: Trial) -> None:
    """A subscription that is shared and durable keeps messages for its consumers."""
    name = trial.address("topic://{}")
    terms = {
        "subscription": f"{trial.name}-shared",
        "durable": True,
        "shared": True,
        "container": trial.name,
    }
    trial.receive(name, 0, **terms)
    sent = trial.send(name, 4)
    equal("received first", trial.receive(name, 2, **terms).bodies, sent[:2])
    equal("received then", trial.receive(name, 2, **terms).bodies, sent[2:])
    trial.start("unsubscribe", name, **terms).ok()


def request_reply(trial: Trial) -> None:
    """Requests that are answered on a temporary queue."""
    server = trial.start("reply", trial.address(), count=3, timeout=30)
    server.until("attached")
    run = trial.start("request", trial.address(), count=3, body="ask", timeout=20).ok()
    equal("replies", run.bodies, [f"re: ask-{number}" for number in range(3)])
    check(all(line["correlated"] for line in run.of("message")), "a reply has another correlation id")
    server.ok()


def browser(trial: Trial) -> None:
    """A browser sees the messages of a queue and takes none."""
    sent = trial.send(trial.address(), 3)
    equal("seen", trial.start("browse", trial.address(), count=3).ok().bodies, sent)
    equal("received after it", trial.receive(trial.address(), 3).bodies, sent)


def selector(trial: Trial) -> None:
    """A selector on a property takes its messages and leaves the others."""
    sent = trial.send(trial.address(), 6)
    run = trial.receive(trial.address(), 3, selector="colour = 'red' AND n >= 1")
    equal("selected", run.bodies, sent[1::2])
    equal("left", trial.receive(trial.address(), 3, selector="colour = 'grün'").bodies, sent[::2])


def selector_over_another_type(trial: Trial) -> None:
    """A comparison of a number with texts is unknown, and selects nothing (Jakarta Messaging 3.1, 3.8.1.2)."""
    sent = trial.send(trial.address(), 2)
    for selector in ("n NOT IN ('7')", "n NOT LIKE '7%'", "NOT (n IN ('7'))", "missing NOT IN ('7')"):
        trial.empty(trial.address(), selector=selector)
    equal("selected", trial.receive(trial.address(), 2, selector="colour NOT IN ('blue')").bodies, sent)


def changed_subscription(trial: Trial) -> None:
    """With another selector a durable subscription is a new one, and keeps only what its selector takes."""
    name = trial.address("topic://{}")
    terms = {"subscription": f"{trial.name}-durable", "durable": True, "container": trial.name}
    trial.receive(name, 0, selector="colour = 'red'", **terms)
    sent = trial.send(name, 4)
    found = trial.receive(name, 1, selector="colour = 'red'", **terms).bodies
    equal("kept", found, [sent[1]])
    trial.empty(name, selector="colour <> 'red'", **terms)
    again = trial.send(name, 2, "again")
    found = trial.receive(name, 1, selector="colour <> 'red'", **terms).bodies
    equal("kept by the new one", found, [again[0]])
    trial.start("unsubscribe", name, **terms).ok()


def delayed_delivery(trial: Trial) -> None:
    """A delayed message is delivered at its time, to consumers that attached before; on queues and on topics."""
    for form in ("queue://{}", "topic://{}"):
        if form.startswith("topic") and "topic" in trial.client.without:
            return
        address = trial.address(form)
        consumer = trial.start("receive", address, count=2, timeout=20)
        consumer.until("attached")
        began = time.time()
        sent = trial.send(address, 2, delay=DELAY_MS)
        equal("received", consumer.ok().bodies, sent)
        early = began + DELAY_MS / 1000 - time.time()
        check(early <= 0, f"a delayed message came {early:.3f} s too soon")
        for line in consumer.of("message"):
            shown = line.get("delivery_time")
            if shown is not None:
                when = (shown - DELAY_MS) / 1000
                check(began <= when <= time.time(), f"its delivery time says that it was sent at {when}")


def message_groups(trial: Trial) -> None:
    """All messages of a group go to one of two consumers, in order (group-id; JMSXGroupID in JMS)."""
    trial.make(messageGroups=True)
    consumers = [trial.start("receive", trial.address(), count=GROUPED, timeout=6) for _ in range(2)]
    for consumer in consumers:
        consumer.until("attached")
    trial.send(trial.address(), GROUPED, groups=GROUPS)
    came = [[line["n"] for line in consumer.ok().of("message")] for consumer in consumers]
    equal("received", sorted(came[0] + came[1]), list(range(GROUPED)))
    check(all(came), f"one consumer got all: {came}")
    for group in range(GROUPS):
        found = [[n for n in each if n % GROUPS == group] for each in came]
        whole = list(range(group, GROUPED, GROUPS))
        check(whole in found, f"group {group} came as {found}")


def last_value(trial: Trial) -> None:
    """A last-value queue has the newest message of each colour, and then live messages."""
    trial.make(kind="last-value", valueKey="colour")
    sent = trial.send(trial.address(), 6)
    reader = trial.start("receive", trial.address(), count=4, timeout=20)
    reader.until("message", 2)
    sent = [*sent[-2:], *trial.send(trial.address(), 2, "then")]
    equal("received", reader.ok().bodies, sent)


# --------------------------------------------------------------------------------------------- acknowledgement


def client_acknowledge(trial: Trial) -> None:
    """All messages are acknowledged at the end: nothing is left."""
    sent = trial.send(trial.address(), 5)
    equal("received", trial.receive(trial.address(), 5, acknowledge="client").bodies, sent)
    trial.empty(trial.address())


def dups_ok_acknowledge(trial: Trial) -> None:
    """Messages are acknowledged lazily: nothing is left after the client has closed."""
    sent = trial.send(trial.address(), 5)
    equal("received", trial.receive(trial.address(), 5, acknowledge="dups-ok").bodies, sent)
    trial.empty(trial.address())


def redelivery(trial: Trial) -> None:
    """Messages that were not acknowledged when the program died come again, in order, marked as redelivered."""
    sent = trial.send(trial.address(), 3)
    crashing = trial.start("receive", trial.address(), count=4, timeout=60, outcome="none")
    crashing.until("message", 3)
    crashing.kill()
    run = trial.receive(trial.address(), 3)
    equal("received again", run.bodies, sent)
    equal("marked", [line["redelivered"] for line in run.of("message")], [True] * 3)


def released(trial: Trial) -> None:
    """A released message comes again, and the attempt does not count."""
    sent = trial.send(trial.address(), 1)
    trial.receive(trial.address(), 1, outcome="release")
    run = trial.receive(trial.address(), 1)
    equal("received again", run.bodies, sent)
    equal("failed deliveries", [line["delivery_count"] for line in run.of("message")], [0])


def modified(trial: Trial) -> None:
    """A message that was modified as failed comes again, and the attempt counts."""
    sent = trial.send(trial.address(), 1)
    trial.receive(trial.address(), 1, outcome="modify")
    run = trial.receive(trial.address(), 1)
    equal("received again", run.bodies, sent)
    equal("failed deliveries", [line["delivery_count"] for line in run.of("message")], [1])


def redelivery_delay(trial: Trial) -> None:
    """A queue with a retry delay: other messages overtake the one that was given back, then that comes again."""
    trial.make(retryType="all", retryDelayMs=RETRY_MS)
    sent = trial.send(trial.address(), 2)
    outcome = "release" if "modified" in trial.client.without else "modify"
    equal("received", trial.receive(trial.address(), 1, outcome=outcome).bodies, sent[:1])
    overtaking(trial, trial.address())
    equal("received again", trial.receive(trial.address(), 1, timeout=30).bodies, sent[:1])


def overtaking(trial: Trial, address: str) -> None:
    """Check that another client, which starts sooner than most, gets the second message."""
    run = trial.start("receive", address, by=trial.observer, count=1).ok()
    equal("overtaking", [line["n"] for line in run.of("message")], [1])


def rejected(trial: Trial) -> None:
    """A rejected message does not come again."""
    trial.send(trial.address(), 1)
    trial.receive(trial.address(), 1, outcome="reject")
    trial.empty(trial.address())


def transaction_commit(trial: Trial) -> None:
    """A transaction moves messages from queue to queue: all of them, once."""
    sent = trial.send(trial.address(), 3)
    trial.start("move", trial.address(), to=trial.address("queue://{}-to"), count=3).ok()
    trial.empty(trial.address())
    equal("moved", trial.receive(trial.address("queue://{}-to"), 3).bodies, sent)


def transaction_rollback(trial: Trial) -> None:
    """The same, rolled back: nothing was published, not even to the log, and what was received comes again."""
    sent = trial.send(trial.address(), 3)
    target = trial.address("queue://{}-to")
    trial.start("move", trial.address(), to=target, count=3, end="rollback").ok()
    trial.empty(target)
    trial.send(target, 1)
    trial.ids(target, 1)
    equal("received again", sorted(trial.receive(trial.address(), 3).bodies), sent)


def transaction_lost(trial: Trial) -> None:
    """A client that is killed before it commits has changed nothing."""
    sent = trial.send(trial.address(), 3)
    target = trial.address("queue://{}-to")
    run = trial.start("move", trial.address(), to=target, count=3, end="never")
    run.until("moved")
    run.kill()
    equal("received again", sorted(trial.receive(trial.address(), 3).bodies), sent)
    trial.empty(target)


def failover(trial: Trial) -> None:
    """The gateway restarts under a consumer and a publisher: both go on by themselves, nothing is lost."""
    most = 9  # all six messages, and again the first three, whose settlement the restart may have cut off
    consumer = trial.start("receive", trial.address(), count=most, timeout=40, reconnect=True)
    consumer.until("attached")
    sent = trial.send(trial.address(), 3, "before")
    consumer.until("message", 3)
    trial.gateway.restart()
    sent += trial.send(trial.address(), 3, "after", reconnect=True)
    if missing := most - len(consumer.until_different(len(sent))):
        trial.send(trial.address(), missing, "rest")  # the program ends by its count
    equal("received", list(dict.fromkeys(consumer.ok().bodies))[: len(sent)], sent)


def failover_of_publisher(trial: Trial) -> None:
    """The gateway restarts under a publisher: all messages that were accepted are there afterwards."""
    publisher = trial.start("send", trial.address(), count=3_000, reconnect=True)
    publisher.until("sent", 50)
    trial.gateway.restart()
    publisher.ok()
    terms = {"count": 9_000, "start": "beginning", "until": "now"}
    run = trial.start("replay", trial.log_of(trial.address()), by=trial.observer, **terms).ok()
    numbers = {line["n"] for line in run.of("message")}
    accepted = {line["n"] for line in publisher.of("sent") if line["outcome"] == "accepted"}
    equal("accepted", len(accepted), 3_000)
    equal("accepted and lost", sorted(accepted - numbers), [])


# ----------------------------------------------------------------------------------------------------- replay


def replay_by_filter(trial: Trial) -> None:
    """The log from its beginning, asked for in the source's filter, by any number of readers."""
    sent = trial.send(trial.address(), 4)
    for _ in range(2):
        run = trial.start("replay", trial.log_of(trial.address()), count=4, start="beginning").ok()
        equal("replayed", run.bodies, sent)
    equal("still on the queue", trial.receive(trial.address(), 4).bodies, sent)


def replay_by_address_option(trial: Trial) -> None:
    """A queue rewound by ``?replay-start=`` in its address."""
    sent = trial.send(trial.address(), 4)
    trial.receive(trial.address(), 4)
    run = trial.receive(f"{trial.address()}?replay-start=beginning", 4)
    equal("replayed", run.bodies, sent)
    trial.empty(trial.address())


def replay_by_selector_term(trial: Trial) -> None:
    """A queue rewound by a term of the selector; the rest of the selector still selects."""
    sent = trial.send(trial.address(), 4)
    trial.receive(trial.address(), 4)
    term = "\"m.x-opt-replay-start\" = 'beginning' AND colour = 'red'"
    equal("replayed", trial.receive(trial.address(), 2, selector=term).bodies, sent[1::2])


def replay_after_id(trial: Trial) -> None:
    """The messages after a replay id that the client has seen before, without that message."""
    sent = trial.send(trial.address(), 5)
    ids = trial.ids(trial.address(), 5)
    run = trial.replay(trial.log_of(trial.address()), 4, ids[1], timeout=SILENCE).ok()
    equal("replayed", run.bodies, sent[2:])


def replay_from_date(trial: Trial) -> None:
    """The messages published since a date, exact to the message."""
    trial.send(trial.address(), 2, "old")
    time.sleep(0.05)
    now = time.time_ns() // 1_000_000
    sent = trial.send(trial.address(), 3, "new")
    date = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now // 1000)) + f".{now % 1000:03d}Z"
    run = trial.replay(trial.log_of(trial.address()), 4, date, timeout=SILENCE).ok()
    equal("replayed", run.bodies, sent)


def replay_into_live(trial: Trial) -> None:
    """History first, then what is published meanwhile: no gap, nothing twice."""
    sent = trial.send(trial.address(), 3, "old")
    reader = trial.replay(trial.log_of(trial.address()), 6, "beginning", timeout=30)
    reader.until("message", 3)
    sent += trial.send(trial.address(), 3, "new")
    equal("replayed, then live", reader.ok().bodies, sent)


def bounded_replay(trial: Trial) -> None:
    """A replay until now ends by itself."""
    sent = trial.send(trial.address(), 3)
    run = trial.replay(trial.log_of(trial.address()), 4, "beginning", "now", timeout=20).ok()
    equal("replayed", run.bodies, sent)
    check(run.reason in ("detached", "marker"), f"it did not end, the program gave up ({run.reason})")
    if run.reason == "marker":
        trial.remark = "the library does not show the detach: the program looks for x-opt-replay-end"


def replay_of_durable_subscription(trial: Trial) -> None:
    """A durable subscription rewound, after everything was consumed."""
    name = trial.address("topic://{}")
    terms = {"subscription": f"{trial.name}-durable", "durable": True, "container": trial.name}
    trial.receive(name, 0, **terms)
    sent = trial.send(name, 3)
    trial.receive(name, 3, **terms)
    equal("replayed", trial.replay(name, 3, "beginning", **terms).ok().bodies, sent)


# --------------------------------------------------------------------------------------------------- refusals


def bad_start(trial: Trial) -> None:
    """A start that is not valid is refused in words, not ignored."""
    run = trial.replay(trial.log_of(trial.address()), 1, "the-day-before")
    trial.refused("bad start", run.error(), "amqp:invalid-field", "the-day-before")


def unknown_id(trial: Trial) -> None:
    """An id that names no message of the log."""
    trial.send(trial.address(), 1)
    unknown = trial.ids(trial.address(), 1)[0][:-8] + "ffffffff"
    run = trial.replay(trial.log_of(trial.address()), 1, unknown)
    trial.refused("unknown id", run.error(), "amqp:precondition-failed", "(?i)log|message")


def future_date(trial: Trial) -> None:
    """A date that has not come yet."""
    run = trial.replay(trial.log_of(trial.address()), 1, "2099-01-01T00:00:00Z")
    trial.refused("future date", run.error(), "amqp:invalid-field", "(?i)future")


def exclusive_taken(trial: Trial) -> None:
    """The second consumer of a queue that takes only one."""
    name = f"{trial.address()}?exclusive=refuse"
    first = trial.start("receive", name, count=1, timeout=30)
    first.until("attached")
    second = trial.start("receive", name, count=1)
    trial.refused("exclusive taken", second.error(), "amqp:resource-locked", "(?i)consumer|exclusive|locked")


def replay_by_inactive_consumer(trial: Trial) -> None:
    """A consumer that waits for its turn on an exclusive queue cannot rewind it under the active one."""
    name = f"{trial.address()}?exclusive=wait"
    trial.send(name, 2)
    first = trial.start("receive", name, count=9, timeout=30)
    first.until("message", 2)
    second = trial.replay(trial.address(), 1, "beginning", timeout=SILENCE)
    trial.refused(
        "replay by inactive consumer", second.error(), "amqp:resource-locked", "(?i)consumer|active"
    )


def no_such_queue(trial: Trial) -> None:
    """A queue that does not exist, and that the attach may not make."""
    run = trial.start("receive", f"{trial.address()}?create=never", count=1)
    trial.refused("no such queue", run.error(), "amqp:not-found", re.escape(trial.name))


def publishing_to_the_log(trial: Trial) -> None:
    """The log is written by publishing to queues and topics, never by its own address."""
    run = trial.start("send", trial.address("log://{}"), count=1)
    trial.refused("publishing to the log", run.error(), "amqp:not-allowed", "(?i)log")


SCENARIOS: tuple[Callable[[Trial], None], ...] = (
    queue,
    large_message,
    competing,
    topic,
    durable_subscription,
    shared_subscription,
    shared_durable_subscription,
    request_reply,
    browser,
    selector,
    selector_over_another_type,
    changed_subscription,
    delayed_delivery,
    message_groups,
    last_value,
    client_acknowledge,
    dups_ok_acknowledge,
    redelivery,
    released,
    modified,
    redelivery_delay,
    rejected,
    transaction_commit,
    transaction_rollback,
    transaction_lost,
    failover,
    failover_of_publisher,
    replay_by_filter,
    replay_by_address_option,
    replay_by_selector_term,
    replay_after_id,
    replay_from_date,
    replay_into_live,
    bounded_replay,
    replay_of_durable_subscription,
    bad_start,
    unknown_id,
    future_date,
    exclusive_taken,
    replay_by_inactive_consumer,
    no_such_queue,
    publishing_to_the_log,
)


def title(scenario: Callable[[Trial], None]) -> str:
    """A behaviour's name in the matrix."""
    return scenario.__name__.replace("_", " ")
