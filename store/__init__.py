"""
What a Message VPN keeps: messages, routes, cursors of endpoints, the replay log, definitions.

``ports`` says what the gateway asks of a store, whichever engine keeps the data; ``errors`` are its errors.
``sqlite`` is the engine that is built in: one file in WAL mode for each Message VPN, in a ``data_folder`` that one
gateway holds. ``postgresql`` is for those who need two machines. What both have in common lies beside them:
``promises`` says what holds between any two commits, and each engine's ``check`` looks whether it does. Read ``ports``
first, then ``sqlite.schema`` (every table, and why it is shaped so), ``sqlite.writer`` and ``sqlite.reader``.
"""
