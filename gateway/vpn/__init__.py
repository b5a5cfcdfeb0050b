"""
A running Message VPN: the pure broker, its store and its clients brought together on one event loop.

Read ``message_vpn`` first, which composes all of it, and then ``committer``: effects are made durable there, in order,
and only then is anybody told. ``delivery`` carries messages to consumers and readers, ``replay`` puts the log on
endpoints again, ``upkeep`` is what a Message VPN does by itself. All of a gateway's are in ``hosted``.
"""
