"""Benchmarks of a real gateway process, each beside its own limit measured in the same run.

`python -m tests.bench` (or `./run bench`) prints the table. Read `rows.py` first: one function a row. The
load generator (`client.py`) is a process of its own that speaks AMQP 1.0 frames directly, and the first row
of every run proves against a null peer that it is not what is being measured.
"""
