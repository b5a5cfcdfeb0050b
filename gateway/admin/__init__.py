"""Administration over HTTP, in the event loop of the gateway.

``server`` has its address. ``application`` (all operations, and what a request passes on its way to them) and ``http``
(the server and its connections) are loaded with the first connection. ``operations`` says how an operation is declared,
``administrators`` who asks, ``rights`` what each operation needs to be permitted. ``semp`` has the resources,
``v1`` serves programs without AMQP, ``metrics`` Prometheus, ``console`` a page for people.

What an administrator asks for goes through ``gateway.vpn.administration`` to the same core as what a client asks for;
this package is imported by ``gateway.app`` alone.
"""
