"""Pages of a Message VPN in PostgreSQL: ``reader`` has them, and waits for a server that cannot be reached."""
