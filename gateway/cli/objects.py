"""
What there is and changes to it: ``rewind status``, ``vpn``, ``queue``, ``topic-endpoint``, ``subscription``, ``point``,
``client``.
"""

from __future__ import annotations

import json
from typing import Any

import click

from gateway.cli.api import Api, api_options
from gateway.cli.words import counted

ENDPOINT_COLUMNS = ("kind", "accessType", "bindCount", "spooledMsgCount", "msgSpoolUsage", "replayState")


@click.command()
@api_options
def status(api: Api) -> None:
    """Show the Message VPN: clients, endpoints, replays under way."""
    api.show(api.ask("GET", "monitor")["data"])


@click.command()
@api_options
def alarms(api: Api) -> None:
    """List the alarms that hold now."""
    columns = ("alarm", "endpointName", "thresholdPercent", "raisedTime", "description")
    api.table(api.all("monitor", "alarms"), columns, "no alarms")


@click.group()
def vpn() -> None:
    """List Message VPNs; show, make, enable, disable or delete the one of `--vpn`."""


@vpn.command("list")
@api_options
def vpn_list(api: Api) -> None:
    """List all of them."""
    api.table(
        api.all_vpns(), ("msgVpnName", "state", "clientCount", "endpointCount", "lastMsgId", "storeProblem")
    )


@vpn.command("show")
@api_options
def vpn_show(api: Api) -> None:
    """Show how it is configured."""
    api.show(api.ask("GET", "config")["data"])


@vpn.command("enable")
@api_options
def vpn_enable(api: Api) -> None:
    """Let clients in."""
    api.done(api.ask("PATCH", "config", body={"enabled": True})["data"], f"{api.vpn} is enabled")


@vpn.command("disable")
@api_options
def vpn_disable(api: Api) -> None:
    """Disconnect its clients and let none in."""
    api.done(api.ask("PATCH", "config", body={"enabled": False})["data"], f"{api.vpn} is disabled")


@vpn.command("create")
@api_options
def vpn_create(api: Api) -> None:
    """Make it, with a file of its own, now and at every start."""
    api.done(api.ask_all("POST", "config/msgVpns", {"msgVpnName": api.vpn})["data"], f"{api.vpn} is made")


@vpn.command("delete")
@api_options
def vpn_delete(api: Api) -> None:
    """Delete it and its file, if it is disabled and empty."""
    api.done(api.ask("DELETE", "config").get("data"), f"{api.vpn} is deleted")


@click.command()
@api_options
def reload(api: Api) -> None:
    """Have the gateway read its configuration file again.

    What can change without a restart does; each setting that cannot is named with the reason, and stays as it was: the
    exit status is 1 then.
    """
    data = api.ask_all("PUT", "action/reload")["data"]
    lines = [*data["applied"], *data["refused"]] or ["nothing has changed"]
    api.done(data, "\n".join(lines))
    if data["refused"]:
        raise click.exceptions.Exit(1)


def _attributes(texts: tuple[str, ...]) -> dict[str, Any]:
    """NAME=VALUE, the value as JSON has it, or else a text."""
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise click.UsageError(f"{text!r} sets nothing: write NAME=VALUE, such as maxBindCount=5")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


_set = click.option(
    "--set", "attributes", multiple=True, metavar="NAME=VALUE", help="An attribute; repeat it for more."
)


def _endpoint_group(verb: str, collection: str, key: str, what: str) -> click.Group:
    """The verbs that queues and topic endpoints have in common."""
    none = f"no {verb.replace('-', ' ')}s"

    @click.group(verb, help=f"Show, make, change, purge or delete a {what}.")
    def group() -> None:
        pass

    @group.command("list")
    @click.option("--where", help="Conditions, such as `spooledMsgCount>0,bindCount==0`.")
    @api_options
    def list_all(api: Api, where: str | None) -> None:
        """List all of them."""
        api.table(
            api.all("monitor", collection, where=where),
            (key, *ENDPOINT_COLUMNS),
            none,
        )

    @group.command()
    @click.argument("name")
    @api_options
    def show(api: Api, name: str) -> None:
        """Show one, with its replay."""
        api.show(api.ask("GET", "monitor", collection, name)["data"], with_names=True)

    @group.command("set")
    @click.argument("name")
    @click.argument("attributes", nargs=-1, required=True, metavar="NAME=VALUE...")
    @api_options
    def change(api: Api, name: str, attributes: tuple[str, ...]) -> None:
        """Change attributes; what lies on it stays."""
        data = api.ask("PATCH", "config", collection, name, body=_attributes(attributes))["data"]
        api.done(data, f"{name} is changed")

    @group.command()
    @click.argument("name")
    @api_options
    def delete(api: Api, name: str) -> None:
        """Delete it with what lies on it."""
        api.done(api.ask("DELETE", "config", collection, name).get("data"), f"{name} is deleted")

    @group.command()
    @click.argument("name")
    @api_options
    def purge(api: Api, name: str) -> None:
        """Drop what lies on it; the replay log keeps it."""
        data = api.ask("PUT", "action", collection, name, "deleteMsgs", body={})["data"]
        api.done(data, f"{counted(data['deletedMsgCount'], 'message')} dropped")

    @group.command()
    @click.argument("name")
    @api_options
    def flows(api: Api, name: str) -> None:
        """List its consumers."""
        columns = ("flowId", "clientName", "clientId", "activityState", "unackedMsgCount", "hasSelector")
        api.table(api.all("monitor", collection, name, "txFlows"), columns, "no consumers")

    @group.command("copy")
    @click.argument("name")
    @click.argument("replay_id")
    @api_options
    def copy(api: Api, name: str, replay_id: str) -> None:
        """Put the message REPLAY_ID (rmid1:…) of the log on it."""
        body = {"replicationGroupMsgId": replay_id}
        answer = api.ask("PUT", "action", collection, name, "copyMsgFromReplayLog", body=body)
        api.done(answer.get("data"), f"{replay_id} is on {name}")

    return group


queue = _endpoint_group("queue", "queues", "queueName", "queue or stream")
topic_endpoint = _endpoint_group("topic-endpoint", "topicEndpoints", "topicEndpointName", "topic endpoint")


@queue.command("create")
@click.argument("name")
@_set
@api_options
def create_queue(api: Api, name: str, attributes: tuple[str, ...]) -> None:
    """Make a queue; `--set kind=stream` makes a stream."""
    body = {"queueName": name, **_attributes(attributes)}
    api.done(api.ask("POST", "config", "queues", body=body)["data"], f"{name} is made")


@topic_endpoint.command("create")
@click.argument("name")
@click.argument("topic")
@_set
@api_options
def create_topic_endpoint(api: Api, name: str, topic: str, attributes: tuple[str, ...]) -> None:
    """Make a durable topic endpoint for TOPIC, which a link of this NAME takes."""
    body = {"topicEndpointName": name, "topic": topic, **_attributes(attributes)}
    api.done(api.ask("POST", "config", "topicEndpoints", body=body)["data"], f"{name} is made")


@click.group()
def subscription() -> None:
    """Topic subscriptions of a queue; `!` in front makes an exception."""


@subscription.command("list")
@click.argument("queue_name", metavar="QUEUE")
@api_options
def list_subscriptions(api: Api, queue_name: str) -> None:
    """List those of QUEUE."""
    api.table(
        api.all("config", "queues", queue_name, "subscriptions"), ("subscriptionTopic",), "no subscriptions"
    )


@subscription.command("add")
@click.argument("queue_name", metavar="QUEUE")
@click.argument("topic")
@api_options
def add_subscription(api: Api, queue_name: str, topic: str) -> None:
    """Have QUEUE attract TOPIC."""
    body = {"subscriptionTopic": topic}
    data = api.ask("POST", "config", "queues", queue_name, "subscriptions", body=body)["data"]
    api.done(data, f"{queue_name} subscribes to {topic}")


@subscription.command("remove")
@click.argument("queue_name", metavar="QUEUE")
@click.argument("topic")
@api_options
def remove_subscription(api: Api, queue_name: str, topic: str) -> None:
    """Have QUEUE attract TOPIC no longer; what came stays."""
    answer = api.ask("DELETE", "config", "queues", queue_name, "subscriptions", topic)
    api.done(answer.get("data"), f"{queue_name} no longer subscribes to {topic}")


@click.group()
def point() -> None:
    """Named places in the replay log, for starts as `point:NAME`."""


@point.command("list")
@api_options
def list_points(api: Api) -> None:
    """List them."""
    api.table(
        api.all("config", "replayPoints"), ("replayPointName", "msgId", "timeMs", "trimmed"), "no points"
    )


@point.command("create")
@click.argument("name")
@click.option("--start", default="live", show_default=True, help="The place, as a replay start says one.")
@api_options
def create_point(api: Api, name: str, start: str) -> None:
    """Name a place in the log."""
    body = {"replayPointName": name, "start": start}
    data = api.ask("POST", "config", "replayPoints", body=body)["data"]
    api.done(data, f"{name} is before message {data['msgId']}")


@point.command("delete")
@click.argument("name")
@api_options
def delete_point(api: Api, name: str) -> None:
    """Take a name away."""
    api.done(api.ask("DELETE", "config", "replayPoints", name).get("data"), f"{name} is deleted")


@click.group()
def client() -> None:
    """Connected clients."""


@client.command("list")
@api_options
def list_clients(api: Api) -> None:
    """List them."""
    columns = ("clientId", "clientName", "clientUsername", "clientAddress", "linkCount", "heldBytes")
    api.table(api.all("monitor", "clients"), columns, "no clients")


@client.command()
@click.argument("name")
@api_options
def disconnect(api: Api, name: str) -> None:
    """Close the connections of the client NAME, or of one by its id (`#5`)."""
    data = api.ask("PUT", "action", "clients", name, "disconnect", body={})["data"]
    api.done(data, f"{counted(data['disconnectedCount'], 'connection')} closed")
