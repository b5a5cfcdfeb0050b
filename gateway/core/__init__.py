"""
The broker as pure state: endpoints, flows, routing, log readers and replays, without I/O.

No code in this package reads a clock, opens a file or a socket, or writes a log line. Time is an argument, changes to
be made durable are returned as ``effects``, and deliveries as plain rows. Read ``broker`` first, then ``publications``,
``endpoint``, ``log`` and ``replay``. ``errors`` is the table of all refusals that a peer can get.
"""
