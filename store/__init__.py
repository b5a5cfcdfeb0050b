"""
One SQLite file in WAL mode per Message VPN: messages, references of endpoints, the replay log, definitions.

The writer thread alone writes, one transaction for all that arrived meanwhile; readers have connections of their own
and read pages. Read ``schema`` first (every table, and why it is shaped so), then ``writer``, ``reader`` and
``recovery``.
"""
