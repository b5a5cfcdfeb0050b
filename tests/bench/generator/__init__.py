"""The load generator: a process of its own that speaks AMQP 1.0 frames directly."""
