"""Spans of messages: what a Message VPN tells a tracing backend of the way of those that are sampled."""
