"""Frames that a peer sends, read before an engine has them: what that takes in silence, or closes too much for."""
