"""The further scenarios for RabbitMQ's clients, on a listener in RabbitMQ mode.

Their programs have the verbs ``declare``, ``describe``, ``purge``, ``delete``, ``bind``, ``unbind``, ``own`` and
``stream``; see the first of them, interop/clients/rabbitmq_amqp_python/client.py.
"""

from __future__ import annotations

import json
import re
import tempfile
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from interop.client import Run
from interop.gateway_process import GatewayProcess
from interop.scenarios import RETRY_MS, SILENCE, Trial, check, equal, overtaking

NOT_THERE = "(?i)404|not exist|no queue"
"""How clients say that a queue does not exist."""


def declared(trial: Trial, kind: str = "stream", *arguments: str) -> str:
    """Declare this trial's own stream or queue; return its address."""
    address = trial.address()
    run = trial.start("declare", address, kind=kind, **({"argument": arguments[0]} if arguments else {}))
    run.ok()
    return address


def read(trial: Trial, count: int, start: str, **options: object) -> Run:
    """Read ``count`` messages of this trial's own stream; wait for the end."""
    return trial.start("stream", trial.address(), count=count, start=start, **options).ok()


def declare_describe_delete(trial: Trial) -> None:
    """A queue and a stream are declared and described; the queue is purged and deleted."""
    address = declared(trial, "queue", "max_len=100")
    trial.send(address, 3)
    (found,) = trial.start("describe", address).ok().of("queue")
    equal(
        "queue", (found["kind"], found["messages"], found["arguments"]["x-max-length"]), ("quorum", 3, "100")
    )
    equal("purged", [line["messages"] for line in trial.start("purge", address).ok().of("queue")], [3])
    trial.start("delete", address).ok()
    declared(trial)
    (found,) = trial.start("describe", address).ok().of("queue")
    equal("kind", found["kind"], "stream")


def stream_from_first(trial: Trial) -> None:
    """A stream from its first message, by any number of readers."""
    sent = trial.send(declared(trial), 4)
    for _ in range(2):
        equal("read", read(trial, 4, "first").bodies, sent)


def stream_from_last(trial: Trial) -> None:
    """A stream from its last message."""
    sent = trial.send(declared(trial), 4)
    equal("read", read(trial, 4, "last", timeout=SILENCE).bodies, sent[-1:])


def stream_from_next(trial: Trial) -> None:
    """A stream from the next message on: no history."""
    trial.send(declared(trial), 2, "old")
    reader = trial.start("stream", trial.address(), count=2, start="next", timeout=20)
    reader.until("attached")
    sent = trial.send(trial.address(), 2, "new")
    equal("read", reader.ok().bodies, sent)


def stream_from_offset(trial: Trial) -> None:
    """A stream from an offset that was seen before, that message included."""
    sent = trial.send(declared(trial), 5)
    offsets = [line["offset"] for line in read(trial, 5, "first").of("message")]
    check(offsets == sorted(set(offsets)), f"offsets do not rise: {offsets}")
    equal("read", read(trial, 9, str(offsets[2]), timeout=SILENCE).bodies, sent[2:])


def stream_from_offset_outside(trial: Trial) -> None:
    """An offset before the stream is its beginning, as RabbitMQ has it."""
    sent = trial.send(declared(trial), 2)
    equal("read", read(trial, 2, "0").bodies, sent)


def stream_from_timestamp(trial: Trial) -> None:
    """A stream from the first message that arrived at a time or later, exact to the message."""
    trial.send(declared(trial), 2, "old")
    time.sleep(0.05)
    now = time.time_ns() // 1_000_000
    sent = trial.send(trial.address(), 2, "new")
    equal("read", read(trial, 9, f"date:{now}", timeout=SILENCE).bodies, sent)


def stream_from_interval(trial: Trial) -> None:
    """A stream from some time ago."""
    sent = trial.send(declared(trial), 2)
    equal("read", read(trial, 2, "10m").bodies, sent)


def stream_into_live(trial: Trial) -> None:
    """History first, then what is published meanwhile: no gap, nothing twice."""
    sent = trial.send(declared(trial), 3, "old")
    reader = trial.start("stream", trial.address(), count=6, start="first", timeout=30)
    reader.until("message", 3)
    sent += trial.send(trial.address(), 3, "new")
    equal("read", reader.ok().bodies, sent)


def stream_filter_values(trial: Trial) -> None:
    """Messages with one of several filter values; on request also messages without a value."""
    address = declared(trial)
    eu = trial.send(address, 2, "eu", value="eu")
    us = trial.send(address, 2, "us", value="us")
    trial.send(address, 2, "asia", value="asia")
    bare = trial.send(address, 2, "bare")
    equal("one value", read(trial, 9, "first", values="eu", timeout=SILENCE).bodies, eu)
    equal("two values", read(trial, 9, "first", values="eu,us", timeout=SILENCE).bodies, eu + us)
    found = read(trial, 9, "first", values="us", unfiltered=True, timeout=SILENCE).bodies
    equal("and unfiltered", found, us + bare)


def property_filter(trial: Trial) -> None:
    """Messages by a field of their properties, and by an application property."""
    address = declared(trial)
    order = trial.send(address, 3, "order", subject="order.new")
    trial.send(address, 2, "bill", subject="bill.new")
    equal("by subject", read(trial, 9, "first", subject="&p:order.", timeout=SILENCE).bodies, order)
    found = read(trial, 9, "first", property="colour=red", subject="order.new", timeout=SILENCE).bodies
    equal("by both", found, order[1:2])


def sql_filter(trial: Trial) -> None:
    """Messages that an SQL expression selects."""
    sent = trial.send(declared(trial), 6)
    found = read(trial, 9, "first", sql="n >= 2 AND colour IN ('red', 'blue')", timeout=SILENCE).bodies
    equal("read", found, [sent[3], sent[5]])


def reconnect_resumes(trial: Trial) -> None:
    """The gateway restarts under a stream's reader, which goes on after the last message it saw."""
    first = trial.send(declared(trial), 3, "before")
    reader = trial.start("stream", trial.address(), count=6, start="first", timeout=40, reconnect=True)
    reader.until("message", 3)
    trial.gateway.restart()
    second = trial.send(trial.address(), 3, "after", reconnect=True)
    equal("read", reader.ok().bodies, first + second)


def exchange_and_binding(trial: Trial) -> None:
    """A topic exchange, bound to a queue by a pattern: the queue gets what matches, until it is unbound."""
    queue, exchange = declared(trial, "queue"), trial.address("exchange://{}-exchange")
    trial.start("declare", exchange, kind="exchange", argument="type=topic").ok()
    trial.start("bind", f"{exchange}/orders.*.new", queue=trial.name).ok()
    sent = trial.send(f"{exchange}/orders.eu.new", 2)
    outcomes = trial.start("send", f"{exchange}/orders.eu.old", count=1).finish().of("sent")
    check(len(outcomes) == 1, "what nobody takes has no outcome")
    equal("received", trial.receive(queue, 9, timeout=SILENCE).bodies, sent)
    trial.start("unbind", f"{exchange}/orders.*.new", queue=trial.name).ok()
    trial.start("send", f"{exchange}/orders.eu.new", count=1).finish()
    trial.empty(queue)
    trial.start("delete", exchange, kind="exchange").ok()


def reply_on_declared_queue(trial: Trial) -> None:
    """Requests that are answered on an exclusive queue, which the client declares for that."""
    server = trial.start("reply", trial.address(), count=3, timeout=30)
    server.until("attached")
    run = trial.start("request", trial.address(), kind="queue", count=3, body="ask", timeout=20).ok()
    equal("replies", run.bodies, [f"re: ask-{number}" for number in range(3)])
    check(all(line["correlated"] for line in run.of("message")), "a reply has another correlation id")
    server.ok()


def delayed_retry(trial: Trial) -> None:
    """A queue is declared with a delay for failed messages: others overtake one, which comes again, counted."""
    address = declared(trial, "queue", f"delayed_retry={RETRY_MS}")
    _tried_again(trial, address, "modify", 1)


def retry_at_a_time(trial: Trial) -> None:
    """A consumer gives a message back until a time: others overtake it, then it comes again."""
    address = declared(trial, "queue")
    _tried_again(trial, address, "later", None, delay=RETRY_MS)


def _tried_again(trial: Trial, address: str, outcome: str, attempts: int | None, **options: object) -> None:
    sent = trial.send(address, 2)
    equal("received", trial.receive(address, 1, outcome=outcome, **options).bodies, sent[:1])
    overtaking(trial, address)
    again = trial.receive(address, 1, timeout=30)
    equal("received again", again.bodies, sent[:1])
    shown = [line["delivery_count"] for line in again.of("message")]
    check(attempts is None or shown in ([attempts], [None]), f"failed deliveries: {shown}")


def exclusive_queue(trial: Trial) -> None:
    """A queue that one connection has to itself: others may send to it, not consume; it is deleted with its owner."""
    address = trial.address()
    owner = trial.start("own", address, count=2, timeout=40)
    owner.until("attached")
    equal("described", [(q["exclusive"], q["auto_delete"]) for q in owner.of("queue")], [(True, True)])
    sent = trial.send(address, 1, "one")
    error = trial.start("receive", address, count=1).error()
    trial.refused("exclusive queue of another", error, "amqp:resource-locked", "exclusive")
    sent += trial.send(address, 1, "two")
    equal("received", owner.ok().bodies, sent)
    error = trial.start("describe", address).error()
    check(bool(re.search(NOT_THERE, error["text"])), f"it is still there: {error['text']}")


def exclusive_queue_recovered(trial: Trial) -> None:
    """The gateway restarts under the owner of an exclusive queue: the client declares the queue anew, and goes on."""
    address = trial.address()
    owner = trial.start("own", address, count=2, timeout=40, reconnect=True)
    owner.until("attached")
    sent = trial.send(address, 1, "before")
    owner.until("message")
    trial.gateway.restart()
    deadline = time.monotonic() + 30
    while [line["consumers"] for line in trial.start("describe", address).finish().of("queue")] != [1]:
        check(time.monotonic() < deadline, "it was not declared anew")
    sent += trial.send(address, 1, "after")
    equal("received", owner.ok().bodies, sent)


def settled_before_sent(trial: Trial) -> None:
    """Messages that are sent settled: there is nothing to acknowledge, and nothing is left."""
    sent = trial.send(declared(trial, "queue"), 5)
    equal("received", trial.receive(trial.address(), 5, settled=True).bodies, sent)
    trial.empty(trial.address())


def single_active_consumer(trial: Trial) -> None:
    """One of two consumers gets all messages; when it detaches, the other one does."""
    address = declared(trial, "queue", "single_active_consumer=true")
    first = trial.start("receive", address, count=2, timeout=30)
    first.until("attached")
    second = trial.start("receive", address, count=2, timeout=30)
    second.until("attached")
    sent = trial.send(address, 4)
    equal("first", first.ok().bodies, sent[:2])
    equal("second", second.ok().bodies, sent[2:])


def consumer_priority(trial: Trial) -> None:
    """The consumer of a higher priority gets messages while it has credit, the other one gets the rest."""
    address = declared(trial, "queue")
    low = trial.start("receive", address, count=1, timeout=30)
    low.until("attached")
    high = trial.start("receive", address, count=3, priority=5, timeout=30)
    high.until("attached")
    sent = trial.send(address, 4)
    equal("higher", high.ok().bodies, sent[:3])
    equal("lower", low.ok().bodies, sent[3:])


def consumer_timeout(trial: Trial) -> None:
    """Messages that a consumer does not settle in time go to another; the first, which is told so, stays attached."""
    address = declared(trial, "queue", "consumer_timeout=1500")
    stuck = trial.start("receive", address, count=3, timeout=8, outcome="none")
    stuck.until("attached")
    sent = trial.send(address, 2)
    stuck.until("message", 2)
    equal("received by another", trial.receive(address, 2, timeout=20).bodies, sent)
    trial.empty(address)
    equal("received by the first", stuck.finish().bodies, sent)


ISSUER = "https://sso.example.com"
TOKEN_S = 6
"""Seconds until the first token expires: within them a program signs in and renews its token."""


def token_renewed(trial: Trial) -> None:
    """A client that signed in by a token sends a newer one in time, and goes on when the first has expired."""
    import jwt  # noqa: PLC0415 - it comes with an extra, as the gateway that takes tokens does
    from cryptography.hazmat.primitives.asymmetric import rsa  # noqa: PLC0415

    key = rsa.generate_private_key(65_537, 2_048)
    keys = Path(trial.programs.enter_context(tempfile.TemporaryDirectory())) / "keys.json"
    keys.write_text(
        json.dumps({"keys": [jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)]})
    )

    def token(seconds: int) -> str:
        # A gateway accepts a token for half a minute after its expiry.
        claims = {"iss": ISSUER, "aud": "rewind", "sub": "ann", "exp": int(time.time()) + seconds - 30}
        return jwt.encode({**claims, "scope": "publish:queue://*"}, key, "RS256")

    tokens = iter([TOKEN_S, 120, 120, 120])

    class Endpoint(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            seconds = next(tokens)
            answer = {"access_token": token(seconds), "token_type": "Bearer", "expires_in": seconds}
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    server = trial.programs.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), Endpoint))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    trial.programs.callback(server.shutdown)
    provider = f"issuer = '{ISSUER}'\naudience = 'rewind'\njwks_file = '{keys}'\nrights_claim = 'scope'\n"
    trial.gateway = trial.programs.enter_context(
        GatewayProcess(["rabbitmq_mode"], f"[[identity_provider]]\n{provider}")
    )
    run = trial.start(
        "renew",
        trial.address(),
        timeout=TOKEN_S,
        token=token(TOKEN_S),
        next=token(120),
        endpoint=f"http://127.0.0.1:{server.server_port}/token",
    ).ok()
    equal("outcomes", [line["outcome"] for line in run.of("sent")], ["accepted"] * 2)


def declared_otherwise(trial: Trial) -> None:
    """A stream that is declared again, as a queue."""
    error = trial.start("declare", declared(trial), kind="queue").error()
    trial.seen["declared otherwise"] = error
    check(
        bool(re.search("(?i)precondition|409", error["text"])), f"the user does not see why: {error['text']}"
    )


def no_such_queue_described(trial: Trial) -> None:
    """A queue that is described and does not exist."""
    error = trial.start("describe", trial.address()).error()
    trial.seen["no such queue described"] = error
    check(
        bool(re.search(NOT_THERE, error["text"])),
        f"the user does not see that it is not there: {error['text']}",
    )


def argument_without_meaning(trial: Trial) -> None:
    """A queue that is to drop its oldest messages when it is full: refused, as the gateway has no such queues."""
    error = trial.start(
        "declare", trial.address(), kind="queue", argument="overflow_behaviour=drop-head"
    ).error()
    trial.seen["argument without meaning"] = error
    check("400" in error["text"], f"the user does not see 400: {error['text']}")


def bad_sql_filter(trial: Trial) -> None:
    """An SQL expression that is not valid: refused with the place of the mistake, not ignored."""
    run = trial.start("stream", declared(trial), count=1, start="first", sql="n >> 2")
    trial.refused("bad SQL filter", run.error(), "amqp:invalid-field", "character")


SCENARIOS: tuple[Callable[[Trial], None], ...] = (
    declare_describe_delete,
    stream_from_first,
    stream_from_last,
    stream_from_next,
    stream_from_offset,
    stream_from_offset_outside,
    stream_from_timestamp,
    stream_from_interval,
    stream_into_live,
    stream_filter_values,
    property_filter,
    sql_filter,
    reconnect_resumes,
    exchange_and_binding,
    declared_otherwise,
    no_such_queue_described,
    argument_without_meaning,
    bad_sql_filter,
    reply_on_declared_queue,
    delayed_retry,
    retry_at_a_time,
    exclusive_queue,
    exclusive_queue_recovered,
    settled_before_sent,
    single_active_consumer,
    consumer_priority,
    consumer_timeout,
    token_renewed,
)
