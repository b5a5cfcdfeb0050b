"""
An oracle of rights: a table says in plain facts what each user may do. Every request, in each form of address, dialect
and protocol, is permitted if the facts that it needs are in the table, and refused otherwise.

The table is written by hand, and independent of rules, patterns and addresses. It is tested at the start, and again
after a reload that gives each user the rights of another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from websockets.sync.client import connect as connect_websocket
from websockets.typing import Subprotocol

from gateway.config import read
from tests.gateway.permissions.conftest import HASH, PASSWORD
from tests.support.chance import times
from tests.support.client import Client, Refused, browsing
from tests.support.frames import ATTACH, attach_frame
from tests.support.management import Pair, declaration
from tests.support.messages import message_to
from tests.support.peer import OK, Peer
from tests.support.running import PLAIN_HTTP, RunningGateway
from tests.support.transactions import Controller, publish

UNAUTHORIZED = "amqp:unauthorized-access"

EVERYTHING_BUT_ADMINISTER = (
    "send q, send r, send t/1, send t/secret, take q, take r, take t/1, take t/>, take >, take t/secret, look q, "
    "rewind q, rewind t/1, read t/>, read >, read q"
)

RIGHTS = {
    # The lists of a user, and the facts that they permit.
    "": EVERYTHING_BUT_ADMINISTER,
    "publish = []": "",
    "publish = ['queue://q', 'topic://t/>', '!topic://t/secret']": "send q, send t/1",
    "publish = ['topic://>']": "send t/1, send t/secret",
    "publish = ['queue://*']": "send q, send r",
    "consume = ['queue://q', 'topic://t/*']": "take q, look q, take t/1, take t/secret, rewind q, rewind t/1",
    "consume = ['topic://t/>', '!topic://t/secret']": "take t/1, rewind t/1",
    "consume = ['topic://>']": "take t/1, take t/>, take >, take t/secret, rewind t/1",
    "consume = ['log://t/>']": "read t/>",
    "consume = ['log://#queue/q']": "read q",
    "consume = ['log://>', '!log://#queue/>']": "read t/>",
    "consume = ['log://>']": "read t/>, read >, read q",
    "browse = ['queue://q']": "look q",
    "consume = ['queue://q', 'topic://t/1']\nreplay = ['queue://q']": "take q, look q, take t/1, rewind q",
    "replay = []\nconsume = ['queue://q']": "take q, look q",
    "administer = ['queue://q']": "run q",
    "administer = ['queue://>', 'topic://t/>']": "run q, run r, run t/1",
    "administer = ['log://>']": "run log, see all",
    "administer = ['queue://q']\npublish = ['queue://r']": "run q, send r",
    "administer = ['queue://q']\nconsume = ['topic://t/1']": "run q, take t/1, rewind t/1",
    "global_access = 'read-only'\npublish = []": "see gateway",
    "global_access = 'read-write'\npublish = []": "see gateway, change gateway",
}


class Door(NamedTuple):
    """A user's connections, by every way in."""

    plain: Client
    hubs: Client
    rabbit: Client
    pair: Pair
    websocket: str
    http: httpx.Client
    user: tuple[str, str]
    reply_to: str
    """A temporary queue of another connection."""


Attempt = Callable[[Door], bool]


def done(call: Callable[[], Any]) -> bool:
    """Whether the call is permitted; any refusal other than for a right is an error of the test."""
    try:
        call()
    except Refused as refused:
        assert refused.name == UNAUTHORIZED, refused
        return False
    return True


def sends(address: str, listener: str = "plain", **more: Any) -> Attempt:
    return lambda door: done(lambda: getattr(door, listener).sender(address, **more).close())


def receives(address: str | None, listener: str = "plain", **more: Any) -> Attempt:
    return lambda door: done(lambda: getattr(door, listener).receiver(address, **more).close())


def relays(to: str, listener: str = "plain") -> Attempt:
    """A message to the anonymous relay, sent twice: the second is decided from what is remembered of the first."""

    def attempt(door: Door) -> bool:
        sender = getattr(door, listener).sender(None)
        deliveries = [sender.send(message_to(to, "x")) for _ in range(2)]
        outcomes = [sender.outcome(delivery) for delivery in deliveries]
        for delivery, outcome in zip(deliveries, outcomes, strict=True):
            assert outcome == "ACCEPTED" or sender.rejection(delivery).name == UNAUTHORIZED
        sender.close()
        assert outcomes[0] == outcomes[1]
        return outcomes[0] == "ACCEPTED"

    return attempt


def relays_in_transaction(to: str) -> Attempt:
    """As `relays`, in a transaction, which is not committed if it is not permitted."""

    def attempt(door: Door) -> bool:
        controller, sender = Controller(door.plain), door.plain.sender(None)
        txn = controller.declare()
        publish(sender, message_to(to, "x"), txn)
        outcome = controller.commit(txn)
        controller.sender.close()
        sender.close()
        return outcome == "ACCEPTED"

    return attempt


def by_websocket(address: str, *, receiver: bool) -> Attempt:
    """An attach over WebSocket."""

    class Tunnel:
        def __init__(self, websocket: Any) -> None:
            self.sendall, self.close = websocket.send, websocket.close
            self.recv = lambda _: websocket.recv(15)

    def attempt(door: Door) -> bool:
        with connect_websocket(door.websocket, subprotocols=[Subprotocol("amqp")], proxy=None) as websocket:
            peer = Peer(Tunnel(websocket))  # type: ignore[arg-type]
            assert peer.plain(*door.user) == OK
            peer.open()
            peer.begin()
            peer.send(attach_frame(0, receiver=receiver, address=address))
            # A refused attach is answered without the requested terminus.
            return peer.skip_to(ATTACH).field(5 if receiver else 6) is not None

    return attempt


def manages(method: str, path: str, body: Any = None) -> Attempt:
    """A request to RabbitMQ's management node."""

    def attempt(door: Door) -> bool:
        status, told = door.pair.ask(method, path, body)
        assert status in (200, 201, 204, 403, 409), (status, told)  # 409: a replay is under way
        return status != 403

    return attempt


def administers(method: str, path: str, body: Any = None) -> Attempt:
    """A request to administration."""

    def attempt(door: Door) -> bool:
        answer = door.http.request(method, path, json=body)
        assert answer.status_code in (200, 400, 403), answer.text
        return answer.status_code != 403

    return attempt


def reads_over_http(subscribe: str) -> Attempt:
    """A request for messages of the log, as lines and as events."""

    def attempt(door: Door) -> bool:
        path = f"/v1/log?limit=1&until=now&from=beginning&subscribe={subscribe}"
        answers = [door.http.get(path, headers={"Accept": kind}) for kind in ("*/*", "text/event-stream")]
        assert {answer.status_code for answer in answers} in ({200}, {403}), answers[0].text
        return answers[0].status_code == 200

    return attempt


def publishes_over_http(address: str) -> Attempt:
    """Publish a message in JSON."""

    def attempt(door: Door) -> bool:
        answer = door.http.post("/v1/publish", params={"address": address}, content='{"body":"x"}')
        assert answer.status_code in (200, 403), answer.text
        return answer.status_code == 200

    return attempt


def takes_dead_messages(door: Door) -> bool:
    """Give q the dead message queue r, after removing it: an unchanged dead message queue needs no right."""
    none, other = (administers("PATCH", f"{CONFIG}/queues/q", {"deadMsgQueue": queue}) for queue in ("", "r"))
    none(door)
    return other(door)


def copies_log(target: str, *patterns: str) -> Attempt:
    """Copy what was published to these topics; the selector matches no message."""
    body = {"target": target, "subscriptions": list(patterns), "selector": "1 = 2"}
    return administers("PUT", f"{LOG}/startCopy", body)


PARTITION = "q/ConsumerGroups/$Default/Partitions/0"
CONFIG, ACTION = "/SEMP/v2/config/msgVpns/default", "/SEMP/v2/action/msgVpns/default"
LOG = f"{ACTION}/replayLogs/default"
TOPIC = {"capabilities": ["topic"]}
REWOUND = "?replay-start=beginning"

ASKED: dict[str, list[tuple[str, Attempt]]] = {
    # By the facts needed: each part of a line has to be in the table; of parts joined by |, one has to be.
    "send q": [
        *[
            (f"send to {address} ({listener})", sends(address, listener))
            for listener in ("plain", "hubs", "rabbit")
            for address in (
                "q",
                "queue://q",
                "QUEUE://q",
                "/queues/q",
                "amqp://h/q",
                "topic://#queue/q",
                "q?create=never",
            )
        ],
        ("send to q/Partitions/0", sends("q/Partitions/0", "hubs")),
        *[(f"relay {to}", relays(to)) for to in ("q", "queue://q", "/queues/q", "topic://#queue/q")],
        *[(f"in a transaction {to}", relays_in_transaction(to)) for to in ("q", "topic://#queue/q")],
        ("by WebSocket to q", by_websocket("q", receiver=False)),
        *[
            (f"by HTTP to {address}", publishes_over_http(address))
            for address in ("q", "queue://q", "/queues/q", "amqp://h/q", "topic://#queue/q", "q?create=never")
        ],
    ],
    "send t/1": [
        ("send to the topic", sends("topic://t/1")),
        ("send to the topic by capability", sends("t/1", **TOPIC)),
        ("send to the exchange", sends("/exchanges/t/1", "rabbit")),
        ("relay to the topic", relays("topic://t/1")),
        ("relay to the exchange", relays("/exchanges/t/1", "rabbit")),
        ("by HTTP to the topic", publishes_over_http("topic://t/1")),
        ("in a transaction to the topic", relays_in_transaction("topic://t/1")),
    ],
    "send t/secret": [
        ("send to t/secret", sends("topic://t/secret")),
        ("by HTTP to t/secret", publishes_over_http("topic://t/secret")),
        ("relay t/secret", relays("topic://t/secret")),
    ],
    "": [
        ("reply by HTTP", lambda door: publishes_over_http(door.reply_to)(door)),
        ("reply", lambda door: sends(door.reply_to)(door)),
        ("relay a reply", lambda door: relays(door.reply_to)(door)),
        ("have a temporary queue", receives(None, dynamic=True)),
    ],
    "never": [
        ("take another's replies", lambda door: receives(door.reply_to)(door)),
        ("browse another's replies", lambda door: receives(door.reply_to, set_up=browsing)(door)),
        ("take another's subscription", receives("topic://t/1", durable=True, name="made")),
        ("change another's subscription", receives("topic://t/2", durable=True, name="made")),
        ("give up another's subscription", receives(None, name="made")),
    ],
    "take q": [
        *[
            (f"receive from {address} ({listener})", receives(address, listener))
            for listener in ("plain", "hubs", "rabbit")
            for address in ("q", "queue://q", "/queues/q", "amqps://h/q")
        ],
        ("by WebSocket from q", by_websocket("q", receiver=True)),
    ],
    "take r": [("receive from r", receives("r"))],
    "look q": [
        ("browse q", receives("q", set_up=browsing)),
        ("browse q there", receives("queue://q", "hubs", set_up=browsing)),
    ],
    "take q, rewind q": [
        ("replay q by option", receives(f"q{REWOUND}")),
        ("replay q by filter", receives("q", filters={"rewind:replay-start": "beginning"})),
        ("replay q as a stream's reader", receives("q", filters={"rabbitmq:stream-offset-spec": "first"})),
    ],
    "take t/1": [
        ("subscribe", receives("topic://t/1")),
        ("subscribe by capability", receives("t/1", **TOPIC)),
        ("subscribe for good", lambda door: receives("topic://t/1", durable=True, name=door.user[0])(door)),
        ("share", receives("topic://t/1", name="all", capabilities=["topic", "shared", "global"])),
        ("by WebSocket from the topic", by_websocket("topic://t/1", receiver=True)),
    ],
    "take t/1, rewind t/1": [("replay the topic", receives(f"topic://t/1{REWOUND}"))],
    "take t/>": [("subscribe t/>", receives("topic://t/>"))],
    "take >": [("subscribe >", receives("topic://>"))],
    "take t/secret": [("subscribe t/secret", receives("topic://t/secret"))],
    "read t/>": [
        ("read t/>", receives(f"log://t/>{REWOUND}")),
        ("read t/> live", receives("log://t/>", "hubs")),
        ("read t/> by HTTP", reads_over_http("t/>")),
    ],
    "read >": [
        ("archive", receives(f"log://>{REWOUND}")),
        ("read all but", receives("log://!x")),
        ("read by HTTP", reads_over_http(">")),
        ("read by HTTP, both", reads_over_http("t/>&subscribe=>")),
        ("read all but, by HTTP", reads_over_http("!x")),
    ],
    "read q": [
        *[
            (f"read {address} ({listener})", receives(f"{address}{REWOUND}", listener))
            for listener in ("plain", "hubs", "rabbit")
            for address in ("log://#queue/q", PARTITION, f"amqps://h/{PARTITION}")
        ],
        ("read q by HTTP", reads_over_http("%23queue/q")),
        ("browse the partition", receives(PARTITION, "hubs", set_up=browsing)),
    ],
    "run q": [
        ("purge by RabbitMQ", manages("DELETE", "/queues/q/messages")),
        ("show q", administers("GET", f"{CONFIG}/queues/q")),
        ("change q", administers("PATCH", f"{CONFIG}/queues/q", {"maxBindCount": 0})),
        ("replay q by hand", administers("PUT", f"{ACTION}/queues/q/previewReplay", {})),
        (
            "add an exception",
            administers("POST", f"{CONFIG}/queues/q/subscriptions", {"subscriptionTopic": "!z"}),
        ),
    ],
    "run q, take t/1|run t/1|run log|read t/>": [
        (
            "subscribe q by hand",
            administers("POST", f"{CONFIG}/queues/q/subscriptions", {"subscriptionTopic": "t/1"}),
        ),
        ("take an exception away", administers("DELETE", f"{CONFIG}/queues/q/subscriptions/%21t%2F1")),
    ],
    "read t/>|run log, send q|run q": [("copy t/> to q", copies_log("q", "t/>"))],
    "read >|run log, send t/1|run t/1": [("copy all to t/1", copies_log("topic://t/1"))],
    "run q, send r|run r": [
        ("dead messages to r", takes_dead_messages),
        (
            "return dead letters of q to r",
            administers("PUT", f"{ACTION}/queues/q/returnDead", {"target": "r"}),
        ),
    ],
    "run q, run log": [
        ("return dead letters of q", administers("PUT", f"{ACTION}/queues/q/returnDead", {})),
    ],
    "send q|take q|run q": [("declare q", manages("PUT", "/queues/q", declaration()))],
    "run log": [
        ("list queues", administers("GET", f"{CONFIG}/queues")),
        ("trim", administers("PUT", f"{ACTION}/replayLogs/default/trimLoggedMsgs", {"before": "beginning"})),
        *[
            (f"{action} nobody's job", administers("PUT", f"{LOG}/{action}Replay", {"replayName": "none"}))
            for action in ("pause", "resume", "cancel")
        ],
        ("disconnect", administers("PUT", f"{ACTION}/clients/nobody/disconnect", {})),
        ("erase", administers("PUT", f"{ACTION}/replayLogs/default/redactMsg", {"msgId": [1]})),
        (
            "see what would be erased",
            administers(
                "PUT",
                f"{ACTION}/replayLogs/default/redactMsg",
                {"selector": "JMSPriority = 4", "preview": True},
            ),
        ),
    ],
    "see gateway": [
        ("metrics", administers("GET", "/metrics")),
        ("list Message VPNs", administers("GET", "/SEMP/v2/monitor/msgVpns")),
    ],
    "change gateway": [
        ("make a Message VPN", administers("POST", "/SEMP/v2/config/msgVpns", {"msgVpnName": "default"})),
        ("delete a Message VPN", administers("DELETE", "/SEMP/v2/config/msgVpns/default")),
    ],
}
LISTENERS = """
[[listener]]
port = 0
sasl = ["PLAIN"]
[[listener]]
port = 0
sasl = ["PLAIN"]
event_hubs_mode = true
[[listener]]
port = 0
sasl = ["PLAIN"]
rabbitmq_mode = true
[[listener]]
port = 0
sasl = ["PLAIN"]
[listener.websocket]
[admin]
port = 0
[vpn.default]
create_queues = false
[vpn.default.queue.r]
"""


def is_permitted(needs: str, facts: str) -> bool:
    """Whether the table has every fact that is needed."""
    there = {fact.strip() for fact in facts.split(",")}
    return all(
        any(choice in there for choice in part.strip().split("|"))
        for part in needs.split(",")
        if part.strip()
    )


class Site:
    """A gateway with one user for each row of the table; a reload rotates their rights."""

    def __init__(self, folder: Path, ending: ExitStack) -> None:
        self._file = folder / "gateway.toml"
        self._data = folder / "data"
        self._ending = ending
        self._rows = list(RIGHTS.items())
        self._write(0)
        self.gateway = ending.enter_context(RunningGateway(read(self._file)))
        http = self.url_of_administration()
        with httpx.Client(base_url=http, auth=("maker", PASSWORD), **PLAIN_HTTP) as maker:
            made = maker.post(f"{CONFIG}/queues", json={"queueName": "q"})
            assert made.status_code == 200, made.text

    def url_of_administration(self) -> str:
        return self.gateway.call(lambda running: running.admin[0])

    def _write(self, turn: int) -> None:
        rows = self._rows[turn:] + self._rows[:turn]
        users = "".join(
            f"[user.u{number}]\npassword = '{HASH}'\n{rules}\n" for number, (rules, _) in enumerate(rows)
        )
        maker = f"[user.maker]\npassword = '{HASH}'\nadminister = ['queue://>', 'log://>']\nconsume = ['queue://q', 'topic://t/1']\n"
        self._file.write_text(f'data = "{self._data}"\n{LISTENERS}{users}{maker}')
        self.facts = {f"u{number}": facts for number, (_, facts) in enumerate(rows)}

    def turn(self, turn: int) -> None:
        """Rotate the rights by so many rows."""
        self._write(turn)
        self.gateway.run_coroutine(lambda running: running.reload())

    def doors(self, step: int) -> Iterator[tuple[str, Door]]:
        """The connections of every ``step``-th user."""
        with Client(self.gateway.urls[0], user=("maker", PASSWORD)) as maker:
            reply_to = maker.receiver(None, dynamic=True).address
            maker.receiver("topic://t/1", durable=True, name="made").detach()
            for name in [*self.facts][::step]:
                user = (name, PASSWORD)
                with ExitStack() as open_now:
                    plain, hubs, rabbit = (
                        open_now.enter_context(Client(url, user=user)) for url in self.gateway.urls[:3]
                    )
                    http = open_now.enter_context(
                        httpx.Client(
                            base_url=self.url_of_administration(), auth=user, **PLAIN_HTTP
                        )  # not over TLS: no certificates to load
                    )
                    pair = Pair(rabbit)
                    yield name, Door(plain, hubs, rabbit, pair, self.gateway.urls[3], http, user, reply_to)


@pytest.mark.slow
@pytest.mark.timeout(600)  # thousands of attempts, each a round trip
def test_what_is_permitted_is_what_the_table_says(tmp_path: Path, _ending: ExitStack) -> None:
    """Every user and every request; for some users again after reloads, with other rights."""
    site = Site(tmp_path, _ending)
    wrong = []
    tried = 0
    for turn, step in ((0, 1), (7, times(6, 1))):
        site.turn(turn)
        for name, door in site.doors(step):
            for needs, attempts in ASKED.items():
                expected = is_permitted(needs, site.facts[name])
                for what, attempt in attempts:
                    tried += 1
                    if attempt(door) is not expected:
                        wrong.append(
                            f"turn {turn}: {site.facts[name]!r}: {what} is {'refused' if expected else 'permitted'}"
                        )
    assert not wrong, "\n".join(wrong)
    assert tried > 3_000
