"""Addresses of sources and targets: the nodes that they name, their options, and patterns of addresses."""
