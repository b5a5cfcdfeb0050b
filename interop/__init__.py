"""Foreign AMQP 1.0 clients against a real gateway, and the demo; runs from a checkout, not from the wheel."""
