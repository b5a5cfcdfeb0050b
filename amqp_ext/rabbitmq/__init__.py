"""
What the clients of RabbitMQ 4 say and want beyond AMQP 1.0, as values and pure functions.

``addresses``, ``stream_filters`` and ``stream_offset`` are how they say what ours say, too; ``introduction`` is how a
server introduces itself to them. ``requests`` reads what they ask the node ``/management`` for, which is HTTP over AMQP
1.0, into ``commands``; ``queue_arguments`` says what the arguments of a declaration mean here, and ``exchanges`` what
exchanges and bindings do.

Sources: RabbitMQ documentation, "AMQP 1.0" and "AMQP 1.0 Client Libraries"; OASIS, "HTTP over AMQP Version 1.0".
"""
