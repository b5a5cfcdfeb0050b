"""What some vendors' clients say beyond AMQP 1.0, for listeners that are to understand it."""
