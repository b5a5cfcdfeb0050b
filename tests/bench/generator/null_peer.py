"""An AMQP 1.0 peer that does nothing but keep up: takes all it is sent, sends all it is asked for.

Against it the load generator shows its own ceiling. ``python -m tests.bench.generator.null_peer`` prints the
ready line a gateway prints.
"""

from __future__ import annotations

import json
import os
import socket
import sys

from tests.bench.generator.connection import Connection, Refused
from tests.bench.generator.links import Receiver, Sender

CREDIT = 4096
SIZE = 256


def main() -> int:
    """Serve one connection after another until the process is told to go."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        print(
            json.dumps({"event": "ready", "amqp": [f"amqp://127.0.0.1:{port}"], "pid": os.getpid()}),
            flush=True,
        )
        while True:
            sock, _ = listener.accept()
            try:
                serve(Connection.accept(sock, "null"))
            except (Refused, OSError) as error:
                print(f"null peer: {error}", file=sys.stderr)
            finally:
                sock.close()


def serve(connection: Connection) -> None:
    """Be what the peer's link asks for, until it goes away."""
    if connection.accept_attach():
        Sender(connection, SIZE).serve()
    else:
        Receiver(connection, SIZE).serve(CREDIT)


if __name__ == "__main__":
    sys.exit(main())
