"""Copies of a Message VPN's file: backups, what is restored from them, and its rows for another engine."""
