"""Jobs: work over the log or a queue that an administrator begins, and that continues after a restart."""
