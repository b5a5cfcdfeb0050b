"""Attached links, each kind with its part of the protocol."""
