"""Which gateway has the store of a Message VPN: waiting for it, having it while a lease lasts, and losing it."""
