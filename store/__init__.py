"""
What a Message VPN keeps: messages, routes, cursors of endpoints, the replay log, definitions.

``ports`` defines what the gateway asks of a store, for every engine; ``errors`` has the errors. ``sqlite`` is the
built-in engine: one file in WAL mode for each Message VPN, in a ``data_folder`` that one gateway locks. ``postgresql``
is for installations on two machines. The other modules are shared by both engines: ``promises`` states what holds
between any two commits, and each engine's ``check`` verifies it. Read ``ports`` first, then ``sqlite.schema`` (every
table, and why it has that shape), ``sqlite.writer`` and ``sqlite.reader``.
"""
