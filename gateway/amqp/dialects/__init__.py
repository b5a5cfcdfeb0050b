"""Dialects: what the clients of one vendor want of a server beyond AMQP 1.0, behind hooks with neutral names."""
