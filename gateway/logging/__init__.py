"""The gateway's own log: the keys of its lines, and how lines are made, limited and written."""
