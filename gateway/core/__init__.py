"""
The broker without its body: endpoints, flows, routing, log readers and replays, as pure state.

Nothing in here reads a clock, opens a file or a socket, or writes a log line: time is an argument, durable consequences
are returned as the values of ``effects``, and deliveries as plain rows. Read ``broker`` first, then ``publishing``,
``endpoint``, ``log`` and ``replay``; ``errors`` is the one table of everything a peer can be refused with.
"""
