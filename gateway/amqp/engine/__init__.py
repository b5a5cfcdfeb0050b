"""Proton's engine, one for each connection: bytes in and out, transfers, dispositions, flows, links and sessions."""
