"""Benchmarks of a real gateway process, each compared with a limit that is measured in the same run.

``python -m tests.bench`` (or ``./run bench``) prints the table. Read ``rows.py`` first, with a ``Row`` for each line
of the table, then ``measured``. The load generator (``generator``) is a process of its own that speaks AMQP 1.0 frames
directly.
"""
