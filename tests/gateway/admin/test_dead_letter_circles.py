"""Dead message queues that bring dead messages back are refused wherever they are said."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config import ConfigError, Listener, Queue, Vpn, parse, read
from store.errors import StoreError
from tests.gateway.admin.conftest import Api
from tests.support.client import Client
from tests.support.management import Pair, declaration
from tests.support.running import RunningGateway, settings_for

CIRCLE = "'a' to 'b' to 'a'"


def made(api: Api, name: str, **said: str) -> None:
    """A queue."""
    api.done("POST", "config", "/queues", {"queueName": name, **said})


def test_over_http(api: Api) -> None:
    """By making the queue, by changing one, and by a subscription to what is sent to a dead message queue."""
    made(api, "a", deadMsgQueue="b")
    for method, path, body in (
        ("PATCH", "/queues/b", {"deadMsgQueue": "a"}),
        ("POST", "/queues/a/subscriptions", {"subscriptionTopic": "#queue/b"}),
        ("POST", "/queues/a/subscriptions", {"subscriptionTopic": "#queue/>"}),
    ):
        refused = api.refused(method, "config", path, body)
        assert refused["status"] == "INVALID_PARAMETER"
        assert "would come back to it, from " in refused["description"]
    api.done("DELETE", "config", "/queues/b")
    body = {"queueName": "b", "deadMsgQueue": "a"}
    assert "from 'b' to 'a' to 'b'" in api.refused("POST", "config", "/queues", body)["description"]
    made(api, "b", deadMsgQueue="c")
    made(api, "d", deadMsgQueue="a")
    assert "'c' to 'a'" in api.refused("PATCH", "config", "/queues/c", {"deadMsgQueue": "a"})["description"]
    assert api.done("GET", "config", "/queues/a/subscriptions") == []


def test_a_topic_endpoint_that_takes_what_is_sent_to_its_dead_message_queue(api: Api) -> None:
    """It would die, and come, for ever."""
    body = {"topicEndpointName": "te", "topic": "#queue/d", "deadMsgQueue": "d"}
    assert "'te' to 'te'" in api.refused("POST", "config", "/topicEndpoints", body)["description"]


def test_in_the_configuration() -> None:
    """Once for each circle, and with where it is said."""
    text = "".join(
        f"[vpn.default.queue.{one}]\ndead_message_queue = '{other}'\n" for one, other in ("ab", "bc", "ca")
    )
    with pytest.raises(ConfigError) as failed:
        parse(text)
    (problem,) = failed.value.problems
    assert problem.startswith(
        "vpn.default.queue.a.dead_message_queue brings dead messages back, from 'a' to 'b' to 'c'"
    )
    with pytest.raises(ConfigError, match="from 'a' to 'a'"):
        parse("[vpn.default.queue.a]\ndead_message_queue = 'd'\nsubscriptions = ['#queue/d']\n")


def test_by_a_configuration_beside_what_an_administrator_made(tmp_path: Path) -> None:
    """At the start the gateway says so and does not start; where it runs, the queue stays as it is."""
    file = tmp_path / "gateway.toml"
    always = f'data = "{tmp_path / "data"}"\n[[listener]]\nport = 0\n[admin]\nport = 0\n'
    file.write_text(always)
    said = "[vpn.default.queue.a]\ndead_message_queue = 'b'\n"
    with RunningGateway(read(file)) as gateway:
        api = Api(gateway)
        made(api, "b", deadMsgQueue="a")
        file.write_text(always + said)
        reloaded = gateway.run_coroutine(lambda running: running.reload())
        assert [CIRCLE in str(one) for one in reloaded.refused] == [True]
        assert api.done("GET", "config", "/queues/a")["deadMsgQueue"] == ""
        api.http.close()
    with pytest.raises(StoreError, match="would come back to it"):
        RunningGateway(read(file)).start()


def test_as_rabbitmq_declares_queues(tmp_path: Path) -> None:
    """The declaration is answered with what is wrong."""
    settings = settings_for(
        tmp_path,
        Vpn(queues={"a": Queue(dead_message_queue="b")}),  # type: ignore[call-arg]
        listeners=(Listener(port=0, rabbitmq_mode=True),),
    )
    with RunningGateway(settings) as gateway, Client(gateway.address) as client:
        pair = Pair(client)
        assert pair.ask("DELETE", "/queues/b")[0] == 200
        arguments = declaration(x_dead_letter_exchange="", x_dead_letter_routing_key="a")
        status, body = pair.ask("PUT", "/queues/b", arguments)
        assert (status, "would come back to it" in str(body)) == (400, True)
        assert gateway.endpoints() == {"a"}
