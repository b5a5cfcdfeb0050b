"""
Queues and streams as the configuration declares them, brought about when a Message VPN starts.

``redeclare`` does the same while it runs, when the configuration is read again.

Invariant: a changed configuration loses no message. A queue on which messages lie does not become a stream, which holds
none: the gateway does not start. A stream may become a queue: its messages are in the log, as before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from gateway.config import Difference, Queue
from gateway.config.queue_settings import QUEUE_KEYS
from gateway.config.toml import dotted, literal
from gateway.core.broker import Broker
from gateway.core.effects import Effect
from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.endpoint.settings import EndpointKind, EndpointSettings, circle_of, told, way_of
from gateway.vpn.committer import Committer
from gateway.vpn.endpoints import Endpoints, dead_letter_ways
from store.errors import StoreError


def check_declared(broker: Broker, queues: Mapping[str, Queue], file: object) -> None:
    """
    Whether what is there can become what is declared.

    Args:
        file: Where it is kept, for the error.

    Raises:
        StoreError: It would cost messages, or bring dead ones back for ever.
    """
    for name, queue in queues.items():
        found = broker.find(name)
        if found is None or found.kind.value == queue.kind:
            continue
        if found.kind is EndpointKind.TOPIC_ENDPOINT:
            cause = f"it keeps {name!r} as a durable topic endpoint, and the configuration makes it a {queue.kind}"
            hint = "Give the queue another name, or have the subscription's owner unsubscribe first"
        elif found.depth:
            cause = (
                f"it keeps {name!r} as a {found.kind.value} with messages on it ({found.depth}), "
                f"and the configuration makes it a {queue.kind}, which holds none"
            )
            hint = f'Start with kind = "{found.kind.value}" and have them consumed first, or give it another name'
        else:
            continue
        raise StoreError("cannot declare the queues of", file, cause, hint)
    for name, circle in _circles(broker, queues):
        cause = f"dead messages of {name!r} would come back to it, from {told(circle)}"
        hint = "Take `dead_message_queue` from one of them that the configuration names"
        raise StoreError("cannot declare the queues of", file, cause, hint)


def _circles(broker: Broker, queues: Mapping[str, Queue]) -> Iterator[tuple[str, list[str]]]:
    """Declared queues whose dead messages would come back to them, by way of what administrators made, too."""
    there = dead_letter_ways(broker.endpoints.values())
    ways = {name: way for name, way in there.items() if name not in queues}
    for name, queue in queues.items():
        kind = EndpointKind(queue.kind)
        way = way_of(name, kind, queue.settings.dead_message_queue, queue.subscriptions)
        if way is not None:
            ways[name] = way
    for name in queues:
        circle = circle_of(name, ways)
        if circle:
            yield name, circle


def redeclare(
    vpn: str,
    broker: Broker,
    committer: Committer,
    endpoints: Endpoints,
    before: Mapping[str, Queue],
    queues: Mapping[str, Queue],
    refused: list[Difference],
) -> dict[str, Queue]:
    """
    Bring queues to what is declared of them now; one that is declared no longer stays, and is the administrators'.

    Args:
        vpn: The Message VPN's name, for what is refused.
        before: The queues that were declared until now.
        refused: Gets what cannot be as long as the gateway runs.

    Returns:
        The queues that are as they are declared.
    """
    fitting = dict(queues)
    for name, queue in queues.items():
        found = broker.find(name)
        if found is None:
            continue
        path = dotted(["vpn", vpn, "queue", name])
        if found.kind.value != queue.kind:
            del fitting[name]
            refused.append(
                Difference(
                    path, f"a {found.kind.value}", f"a {queue.kind}", "is the name of another endpoint"
                )
            )
            continue
        for key in QUEUE_KEYS:
            there, asked = key.value_of(found.settings), key.value_of(queue.settings)
            if key.setting.fixed and there != asked:
                fitting.pop(name, None)
                reason = key.setting.fixed
                refused.append(Difference(f"{path}.{key.key}", literal(there), literal(asked), reason))
    for name, circle in list(_circles(broker, fitting)):
        path = dotted(["vpn", vpn, "queue", name, "dead_message_queue"])
        found, asked = broker.find(name), fitting[name].settings.dead_message_queue
        was = "not there" if found is None else literal(found.settings.dead_message_queue)
        reason = f"would bring dead messages back, from {told(circle)}"
        refused.append(Difference(path, was, literal(asked), reason))
        del fitting[name]
    changed = {name: queue for name, queue in fitting.items() if before.get(name) != queue}
    committer.commit(declare(broker, changed))
    for name in before.keys() - queues.keys():
        found = broker.find(name)
        if found is not None:
            committer.commit(broker.change_settings(found, replace(found.settings, declared=False)))
    for name in changed:
        endpoints.redeclared(broker.endpoints[name])
    return fitting


def declare(broker: Broker, queues: Mapping[str, Queue]) -> list[Effect]:
    """Make what is declared and not there, and bring what is there to what is declared; it was checked."""
    effects: list[Effect] = []
    for name, queue in queues.items():
        settings, kind = replace(queue.settings, declared=True), EndpointKind(queue.kind)
        found: Endpoint | None = broker.find(name)
        if found is not None and found.kind is not kind:
            effects += broker.delete(found)
            found = None
        if found is None:
            effects += broker.create(name, kind, settings, list(queue.subscriptions))[1]
        else:
            # The store has seen to it: what lies on it was arranged before it was read.
            assert found.settings.priorities == settings.priorities
            purged = found.settings
            settings = replace(settings, purged_below=purged.purged_below, purged_ms=purged.purged_ms)
            effects += broker.change_settings(found, settings)
            effects += broker.set_subscriptions(found, queue.subscriptions)
    for name in {queue.settings.dead_message_queue for queue in queues.values()} - {""}:
        if broker.find(name) is None:
            effects += broker.create(name, EndpointKind.QUEUE, EndpointSettings())[1]
    return effects
