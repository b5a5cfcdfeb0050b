"""Queues and topic endpoints: what is ready on them, who consumes it, and in what order."""
