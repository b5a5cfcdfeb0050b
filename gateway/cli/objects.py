"""
Verbs that show and change the objects of a gateway: ``rewind status``, ``alarms``, ``reload``, ``vpn``, ``queue``,
``topic-endpoint``, ``subscription``, ``point``, ``client``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import click

from gateway.cli.api import LOG, Api, NotDone, api_options, verb
from gateway.cli.words import arranged, counted

ENDPOINT_COLUMNS = ("kind", "accessType", "bindCount", "spooledMsgCount", "msgSpoolUsage", "replayState")

FIRST_OF_VPN: Final = (
    "msgVpnName",
    "state",
    "activeGateway",
    "storeProblem",
    "replayLogUsage",
    "oldestLoggedMsgTimeMs",
    "clientCount",
    "endpointCount",
    "msgReplayInitializingCount",
    "msgReplayActiveCount",
    "msgReplayPendingCompleteCount",
    "msgReplayFailedCount",
)
FIRST_OF_ENDPOINT: Final = (
    "queueName",
    "topicEndpointName",
    "topic",
    "spooledMsgCount",
    "msgSpoolUsage",
    "delayedMsgCount",
    "delayedMsgUsage",
    "oldestMsgTimeMs",
    "bindCount",
    "txUnackedMsgCount",
    "replayState",
    "replayRemaining",
    "replayEtaMs",
    "replayOutstandingMsgCount",
    "replayBlockedBySelector",
)

_name = click.argument("name")
_queue = click.argument("queue_name", metavar="QUEUE")
_topic = click.argument("topic")
_set = click.option(
    "--set", "attributes", multiple=True, metavar="NAME=VALUE", help="An attribute; repeat it for more."
)
_all = click.option(
    "--all", "is_all", is_flag=True, help="Also show attributes that are zero, unset or have their default."
)


def _show(
    api: Api, data: dict[str, Any], first: Sequence[str], *, is_all: bool, with_names: bool = False
) -> None:
    """Show an object: to a person with the most interesting attributes ``first``, to a program as it is."""
    api.show(data if api.as_json else arranged(data, first, is_all=is_all), with_names=with_names)


@click.command()
@_all
@api_options
def status(api: Api, is_all: bool) -> None:
    """Show the state of the Message VPN: its log, clients, endpoints and running replays."""
    data = api.look()
    if not api.as_json:
        # A waiting gateway has no log, and a store that cannot be read has none to show.
        with suppress(NotDone):
            log = api.look(*LOG)
            data |= {
                "replayLogUsage": log["msgSpoolUsage"],
                "oldestLoggedMsgTimeMs": log["oldestMsgTimeMs"],
            }
    _show(api, data, FIRST_OF_VPN, is_all=is_all)


@click.command()
@api_options
def alarms(api: Api) -> None:
    """List the active alarms."""
    columns = ("alarm", "endpointName", "thresholdPercent", "raisedTime", "description")
    api.table(api.all("monitor", "alarms"), columns, "no alarms")


@click.group()
def vpn() -> None:
    """List Message VPNs; show, make, enable, disable or delete the one of `--vpn`."""


@verb(vpn, "list")
def vpn_list(api: Api) -> None:
    """List all Message VPNs."""
    columns = ("msgVpnName", "state", "clientCount", "endpointCount", "lastMsgId", "storeProblem")
    api.table(api.all_vpns(), columns)


@verb(vpn, "show")
def vpn_show(api: Api) -> None:
    """Show the configuration of the Message VPN."""
    api.show(api.ask("GET", "config")["data"])


@verb(vpn, "enable")
def vpn_enable(api: Api) -> None:
    """Accept clients again."""
    api.done(api.configure("PATCH", body={"enabled": True}), f"{api.vpn} is enabled")


@verb(vpn, "disable")
def vpn_disable(api: Api) -> None:
    """Disconnect its clients, and refuse new ones."""
    api.done(api.configure("PATCH", body={"enabled": False}), f"{api.vpn} is disabled")


@verb(vpn, "create")
def vpn_create(api: Api) -> None:
    """Make the Message VPN, with a store of its own, now and at every start."""
    api.done(api.ask_all("POST", "config/msgVpns", {"msgVpnName": api.vpn})["data"], f"{api.vpn} is made")


@verb(vpn, "delete")
def vpn_delete(api: Api) -> None:
    """Delete the Message VPN and its file, if it is disabled and empty."""
    api.done(api.configure("DELETE"), f"{api.vpn} is deleted")


@click.command()
@api_options
def reload(api: Api) -> None:
    """Have the gateway read its configuration file again.

    Every change that needs no restart is applied. Each other change is named with the reason, and has no effect; then
    the exit status is 1.
    """
    data = api.ask_all("PUT", "action/reload")["data"]
    lines = [*data["applied"], *data["refused"]] or ["nothing has changed"]
    api.done(data, "\n".join(lines))
    if data["refused"]:
        raise click.exceptions.Exit(1)


def _attributes(texts: tuple[str, ...]) -> dict[str, Any]:
    """Parse NAME=VALUE; the value is JSON, or else a text."""
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise click.UsageError(f"{text!r} has no value: write NAME=VALUE, such as maxBindCount=5")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


def _endpoint_group(noun: str, collection: str, key: str, what: str) -> click.Group:
    """The verbs that queues and topic endpoints have in common."""

    @click.group(noun, help=f"Show, make, change, purge or delete a {what}.")
    def group() -> None:
        pass

    @verb(
        group, "list", click.option("--where", help="Conditions, such as `spooledMsgCount>0,bindCount==0`.")
    )
    def list_all(api: Api, where: str | None) -> None:
        """List all of them."""
        found = api.all("monitor", collection, where=where)
        api.table(found, (key, *ENDPOINT_COLUMNS), f"no {noun.replace('-', ' ')}s")

    @verb(group, "show", _name, _all)
    def show(api: Api, name: str, is_all: bool) -> None:
        """Show one: its depth, consumers, oldest message and replay."""
        _show(api, api.look(collection, name), FIRST_OF_ENDPOINT, is_all=is_all, with_names=is_all)

    @verb(
        group,
        "set",
        _name,
        click.argument("attributes", nargs=-1, required=True, metavar="NAME=VALUE..."),
    )
    def change(api: Api, name: str, attributes: tuple[str, ...]) -> None:
        """Change attributes; its messages stay."""
        data = api.configure("PATCH", collection, name, body=_attributes(attributes))
        api.done(data, f"{name} is changed")

    @verb(group, "delete", _name)
    def delete(api: Api, name: str) -> None:
        """Delete it and its messages."""
        api.done(api.configure("DELETE", collection, name), f"{name} is deleted")

    @verb(group, "purge", _name)
    def purge(api: Api, name: str) -> None:
        """Delete its messages; the replay log keeps them."""
        data = api.act(collection, name, "deleteMsgs", body={})
        api.done(data, f"{counted(data['deletedMsgCount'], 'message')} deleted")

    @verb(group, "flows", _name)
    def flows(api: Api, name: str) -> None:
        """List its consumers."""
        columns = (
            "flowId",
            "clientName",
            "clientId",
            "activityState",
            "unackedMsgCount",
            "hasSelector",
            "partitions",
            "groupCount",
        )
        api.table(api.all("monitor", collection, name, "txFlows"), columns, "no consumers")

    @verb(group, "delayed", _name)
    def delayed(api: Api, name: str) -> None:
        """List its delayed messages, the next due first."""
        columns = ("replicationGroupMsgId", "deliveryTimeMs", "contentSize", "deliveryCount")
        api.table(api.all("monitor", collection, name, "delayedMsgs"), columns, "no delayed messages")

    @verb(group, "cancel-delayed", _name, click.argument("replay_id"))
    def cancel_delayed(api: Api, name: str, replay_id: str) -> None:
        """Cancel the delayed message REPLAY_ID (rmid1:…); the log keeps it."""
        body = {"replicationGroupMsgId": replay_id}
        api.done(
            api.act(collection, name, "cancelDelayedMsg", body=body), f"{replay_id} will not be delivered"
        )

    @verb(group, "release-delayed", _name, click.argument("replay_id"))
    def release_delayed(api: Api, name: str, replay_id: str) -> None:
        """Deliver the delayed message REPLAY_ID (rmid1:…) now."""
        body = {"replicationGroupMsgId": replay_id}
        api.done(
            api.act(collection, name, "releaseDelayedMsg", body=body), f"{replay_id} is no longer delayed"
        )

    @verb(group, "copy", _name, click.argument("replay_id"))
    def copy(api: Api, name: str, replay_id: str) -> None:
        """Copy the message REPLAY_ID (rmid1:…) of the log to it."""
        body = {"replicationGroupMsgId": replay_id}
        api.done(api.act(collection, name, "copyMsgFromReplayLog", body=body), f"{replay_id} is on {name}")

    return group


queue = _endpoint_group("queue", "queues", "queueName", "queue or stream")
topic_endpoint = _endpoint_group("topic-endpoint", "topicEndpoints", "topicEndpointName", "topic endpoint")


@verb(queue, "create", _name, _set)
def create_queue(api: Api, name: str, attributes: tuple[str, ...]) -> None:
    """Make a queue; `--set kind=stream` makes a stream, `--set kind=last-value` a last-value queue."""
    body = {"queueName": name, **_attributes(attributes)}
    api.done(api.configure("POST", "queues", body=body), f"{name} is made")


@verb(queue, "values", _name, click.option("--key", help="Only this key."))
def list_values(api: Api, name: str, key: str | None) -> None:
    """List the keys of a last-value queue, each with its newest message."""
    columns = ("key", "replicationGroupMsgId", "spooledTimeMs", "topic", "contentSize")
    api.table(api.all("monitor", "queues", name, "values", key=key), columns, "no values")


@verb(queue, "delete-value", _name, click.argument("key"))
def delete_value(api: Api, name: str, key: str) -> None:
    """Remove the value of KEY until a message with that key arrives; the replay log keeps the message."""
    api.done(api.act("queues", name, "deleteValue", body={"key": key}), f"{key} has no value")


@verb(topic_endpoint, "create", _name, _topic, _set)
def create_topic_endpoint(api: Api, name: str, topic: str, attributes: tuple[str, ...]) -> None:
    """Make a durable topic endpoint for TOPIC; a consumer attaches to it with a link called NAME."""
    body = {"topicEndpointName": name, "topic": topic, **_attributes(attributes)}
    api.done(api.configure("POST", "topicEndpoints", body=body), f"{name} is made")


@click.group()
def subscription() -> None:
    """Topic subscriptions of a queue; a leading `!` makes an exception."""


@verb(subscription, "list", _queue)
def list_subscriptions(api: Api, queue_name: str) -> None:
    """List the subscriptions of QUEUE."""
    found = api.all("config", "queues", queue_name, "subscriptions")
    api.table(found, ("subscriptionTopic",), "no subscriptions")


@verb(subscription, "add", _queue, _topic)
def add_subscription(api: Api, queue_name: str, topic: str) -> None:
    """Subscribe QUEUE to TOPIC."""
    body = {"subscriptionTopic": topic}
    data = api.configure("POST", "queues", queue_name, "subscriptions", body=body)
    api.done(data, f"{queue_name} subscribes to {topic}")


@verb(subscription, "remove", _queue, _topic)
def remove_subscription(api: Api, queue_name: str, topic: str) -> None:
    """Remove the subscription of QUEUE to TOPIC; its messages stay."""
    data = api.configure("DELETE", "queues", queue_name, "subscriptions", topic)
    api.done(data, f"{queue_name} no longer subscribes to {topic}")


@click.group()
def point() -> None:
    """Named places in the replay log, for starts as `point:NAME`."""


@verb(point, "list")
def list_points(api: Api) -> None:
    """List the points."""
    columns = ("replayPointName", "msgId", "timeMs", "trimmed")
    api.table(api.all("config", "replayPoints"), columns, "no points")


@verb(
    point,
    "create",
    _name,
    click.option("--start", default="live", show_default=True, help="The place, as a replay start."),
)
def create_point(api: Api, name: str, start: str) -> None:
    """Name a place in the log."""
    body = {"replayPointName": name, "start": start}
    data = api.configure("POST", "replayPoints", body=body)
    api.done(data, f"{name} is before message {data['msgId']}")


@verb(point, "delete", _name)
def delete_point(api: Api, name: str) -> None:
    """Remove the name of a place."""
    api.done(api.configure("DELETE", "replayPoints", name), f"{name} is deleted")


@click.group()
def client() -> None:
    """Connected clients."""


@verb(client, "list")
def list_clients(api: Api) -> None:
    """List the connected clients."""
    columns = ("clientId", "clientName", "clientUsername", "clientAddress", "linkCount", "heldBytes")
    api.table(api.all("monitor", "clients"), columns, "no clients")


@verb(client, "disconnect", _name)
def disconnect(api: Api, name: str) -> None:
    """Close the connections of the client NAME, which may be an id (`#5`)."""
    data = api.act("clients", name, "disconnect", body={})
    api.done(data, f"{counted(data['disconnectedCount'], 'connection')} closed")
