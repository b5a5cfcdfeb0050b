"""Carries messages from a Message VPN to the links that take them."""
