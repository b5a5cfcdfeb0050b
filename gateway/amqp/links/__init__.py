"""Attached links: a module for each kind of link, with its part of the protocol."""
