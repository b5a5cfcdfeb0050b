"""Carries messages of a Message VPN to the links that take them: of endpoints, of the log, and to browsers."""
