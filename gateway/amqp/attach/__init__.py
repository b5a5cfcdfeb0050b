"""Attaches: what the client asks for, whether that is permitted, and the answer."""
