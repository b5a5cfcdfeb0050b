"""Administration over HTTP, in the event loop of the gateway.

``server`` has its address; ``http`` serves it, and is loaded with the first connection. ``semp`` has its resources,
``administrators`` knows who asks, ``rights`` what each operation needs to be permitted, ``metrics`` counts for
Prometheus; ``console`` is a page for people that asks for the same. What an administrator asks for goes through
``gateway.vpn.administration`` to the same core as what a client asks for; this package is imported by ``gateway.app``
alone.
"""
