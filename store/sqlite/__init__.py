"""A Message VPN in one SQLite file in WAL mode."""
