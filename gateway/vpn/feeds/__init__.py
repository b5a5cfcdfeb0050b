"""Carries messages of a Message VPN to links: from endpoints to consumers and browsers, from the log to readers."""
