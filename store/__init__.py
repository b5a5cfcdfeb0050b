"""
What a Message VPN keeps: messages, routes, cursors of endpoints, the replay log, definitions.

``ports`` says what the gateway asks of a store, whichever engine keeps the data; ``errors`` are its errors.
``sqlite`` is the engine that is built in: one file in WAL mode for each Message VPN, in a ``data_folder`` that one
gateway holds. Read ``ports`` first, then ``sqlite.schema`` (every table, and why it is shaped so), ``sqlite.writer``
and ``sqlite.reader``.
"""
