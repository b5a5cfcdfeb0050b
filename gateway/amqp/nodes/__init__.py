"""Nodes whose lives depend on the links and connections that use them."""
