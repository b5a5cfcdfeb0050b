"""The measurements: each function runs one set-up and returns its figures, which ``rows.py`` judges.

Invariant: every measurement starts its own servers in a folder of its own and leaves nothing running. A lost,
repeated or reordered message ends the run with ``LoadFailed`` instead of giving a fast figure.
"""
