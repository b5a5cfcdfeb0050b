"""Attaches: what is asked for, whether it is permitted, and the answer."""
