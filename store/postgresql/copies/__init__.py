"""Copies of a Message VPN's schema: its rows for another engine, and from one."""
