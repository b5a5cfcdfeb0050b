"""What is measured: each function runs one set-up and returns its figures. ``rows.py`` judges them.

Invariant: every measurement starts its own servers in a folder of its own and leaves nothing running; a lost,
repeated or reordered message ends the run (``LoadFailed``) instead of making a fast figure.
"""
