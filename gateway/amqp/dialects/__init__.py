"""Dialects: what the clients of one vendor expect of a server beyond AMQP 1.0, behind hooks with neutral names."""
