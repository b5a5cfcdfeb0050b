"""
What the clients of RabbitMQ 4 send and expect beyond AMQP 1.0, as values and pure functions.

``forms`` has their notation for what our own clients say, too: addresses, exchanges as names in front of topics,
filters of streams; and how a server introduces itself to them. ``management`` reads requests to the node
``/management``, which are HTTP over AMQP 1.0, into commands, and defines what the arguments of a declaration mean here.

Sources: RabbitMQ documentation, "AMQP 1.0" and "AMQP 1.0 Client Libraries"; OASIS, "HTTP over AMQP Version 1.0".
"""
