"""Administration over HTTP, in the event loop of the gateway.

``server`` has its address. ``application`` (all operations, and the middleware in front of them) and ``http`` (the
server and its connections) are loaded with the first connection. ``operations`` declares an operation,
``administrators`` finds the user who sends a request, ``rights`` has the permission that each operation needs. ``semp``
has the resources, ``v1`` serves programs without AMQP, ``metrics`` Prometheus, ``console`` a page for people.

Requests of administrators go through ``gateway.vpn.administration`` to the same core as those of AMQP clients.
``gateway.app`` imports this package; the command line imports its module ``monitoring`` alone.
"""
