"""
A running Message VPN: the pure broker, its store and its clients brought together on one event loop.

Read ``message_vpn`` first: it composes all parts. Then read ``committer``: it makes effects durable, in order, and only
then tells anybody. ``feeds`` carries messages to consumers and readers, ``replays`` puts the log on endpoints again,
``upkeep`` is what a Message VPN does by itself, and ``hosted`` holds all Message VPNs of a gateway.
"""
