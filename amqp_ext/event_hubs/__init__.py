"""
What the clients of Azure Event Hubs send and expect beyond AMQP 1.0, as values and pure functions.

``forms`` has their notation for what our own clients say, too: addresses, starts, names. ``management`` reads requests
to the nodes ``$cbs`` and ``$management`` into commands, and the tokens sent to ``$cbs``. ``frames`` adapts frames to
these clients, and cuts a transfer with several events into messages.
"""
