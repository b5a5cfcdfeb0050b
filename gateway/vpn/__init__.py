"""
A running Message VPN: the pure broker, its store and its consumers brought together on one event loop.

``message_vpn`` is the pipeline that commits and then tells; ``log_source`` reads the log in order out of memory or the
store; ``endpoint_feed``, ``log_feed`` and ``replay_pump`` carry rows to queue consumers, log readers and replaying
endpoints; ``readers`` are those who read and take nothing. Read ``message_vpn`` first; links reach all of it through
that class alone.
"""
