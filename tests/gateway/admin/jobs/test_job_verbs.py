"""The verbs of jobs, as a person types them."""

from __future__ import annotations

import json

from click.testing import CliRunner, Result
from proton import Delivery

from gateway.cli import main
from tests.gateway.admin.conftest import Api
from tests.support.client import Client, texts
from tests.support.messages import data
from tests.support.waiting import wait_until


def run(api: Api, *words: str) -> Result:
    return CliRunner().invoke(main, [*words, "--admin", str(api.http.base_url)])


def said(api: Api, *words: str) -> str:
    """What a verb that succeeds prints."""
    ran = run(api, *words)
    assert ran.exit_code == 0, ran.output
    return str(ran.stdout)


def test_a_copy_by_verb(api: Api, client: Client) -> None:
    """Waited for, it says what became of it; an AMQP client has the copies."""
    client.sender("topic://a/1").send_all([data(n) for n in range(5)])
    client.sender("topic://b").send_all([data("another")])
    words = ["--from", "#2", "--until", "#4", "--subscribe", "a/>", "--to", "queue://q", "--name", "it"]
    assert said(api, "replay", "copy", *words, "--wait") == (
        "it is complete: 3 copies of 3 messages looked at\n"
    )
    assert texts(client.receiver("q").drain()) == ["1", "2", "3"]


def test_a_job_rests_goes_on_and_is_cancelled_by_its_name(api: Api, client: Client) -> None:
    """As an endpoint's replay is cancelled by the endpoint's; a name of neither is told to be none."""
    client.sender("topic://a").send_all([data(n) for n in range(5)])
    begun = said(api, "replay", "copy", "--to", "queue://q", "--rate", "0.001", "--name", "slow")
    assert begun == "slow: messages 1 to 5 are copied to queue://q\n"
    assert said(api, "replay", "pause", "slow") == "slow rests\n"
    assert said(api, "replay", "resume", "slow") == "slow goes on\n"
    assert said(api, "replay", "cancel", "slow") == "slow was cancelled; what it has published stays\n"
    again = run(api, "replay", "cancel", "slow")
    assert (again.exit_code, "is cancelled" in again.stderr) == (1, True)
    nobody = run(api, "replay", "cancel", "nobody")
    assert (nobody.exit_code, "no queue 'nobody'" in nobody.stderr) == (1, True)
    never = run(api, "replay", "copy", "--from", "#99", "--to", "q", "--wait")
    assert (never.exit_code, "offset 99" in never.stderr) == (1, True)


def test_dead_letters_by_verb(api: Api, client: Client) -> None:
    """Counted as a table and as JSON, and sent back."""
    assert run(api, "queue", "create", "q", "--set", "deadMsgQueue=dead").exit_code == 0
    client.sender("q").send_all([data(n) for n in range(3)])
    receiver = client.receiver("q")
    receiver.flow(3)
    receiver.settle(receiver.take(3), Delivery.REJECTED)
    receiver.close()
    wait_until(lambda: api.queue("dead")["spooledMsgCount"] == 3, "all are dead")
    (row,) = said(api, "dead", "list", "dead").splitlines()[1:]
    assert row.split()[:3] == ["rejected", "q", "3"]
    (group,) = map(json.loads, said(api, "dead", "list", "dead", "--json", "--by", "reason").splitlines())
    assert (group["deadReason"], group["deadEndpointName"], group["msgCount"]) == ("rejected", "", 3)
    assert said(
        api, "dead", "return", "dead", "--limit", "1", "--to", "other", "--name", "one", "--wait"
    ) == ("one is complete: 1 messages returned\n")
    assert (
        said(api, "dead", "return", "dead", "--name", "all")
        == "all: dead letters of dead go to where they died\n"
    )
    wait_until(lambda: api.queue("dead")["spooledMsgCount"] == 0, "all went back")
    assert texts(client.receiver("q").drain()) == ["1", "2"]
    assert said(api, "dead", "list", "dead") == "Nothing lies on dead.\n"
