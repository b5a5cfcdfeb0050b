"""The command ``rewind``: the gateway itself, its configuration, and clients for a person's hands.

``command`` has the verbs that run a gateway and look at its configuration; ``send`` and ``tail`` are AMQP clients, over
``amqp_client``. ``objects``, ``replays`` and ``log`` are clients of the administration, over ``api``; ``archive``
runs the archiver, and tells the administration how far it is. Read ``command`` first.
"""

from gateway.cli.command import main

__all__ = ["main"]
