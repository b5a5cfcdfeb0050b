"""Addresses of sources and targets: what they name, their options, and patterns of them."""
