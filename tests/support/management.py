"""A client of RabbitMQ's node ``/management`` that pairs its links as RabbitMQ's clients do."""

from __future__ import annotations

from typing import Any

from proton import Link, Message, symbol

from tests.support.client import Client


class Pair:
    """The two links of a management client, which have the same name."""

    def __init__(self, client: Client) -> None:
        self._ids = 0

        def set_up(link: Link) -> None:
            link.properties = {symbol("paired"): True}
            link.source.address = link.target.address = "/management"

        self.sender = client.sender("/management", name="pair", set_up=set_up)
        self.receiver = client.receiver("/management", name="pair", set_up=set_up, credit=100)

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Send a request; returns the status and body of its answer."""
        self._ids += 1
        request = Message(id=f"request-{self._ids}", reply_to="$me", address=path, subject=method, body=body)
        self.sender.send(request.encode(), settled=True)
        answer = Message()
        answer.decode(self.receiver.take(1)[0].raw)
        assert answer.correlation_id == request.id
        assert answer.properties == {"http:response": "1.1"}
        return int(answer.subject), answer.body


def declaration(**arguments: Any) -> dict[str, Any]:
    """The body of a declaration with these arguments; ``_`` in a name becomes ``-``."""
    return {
        "durable": True,
        "arguments": {name.replace("_", "-"): value for name, value in arguments.items()},
    }
