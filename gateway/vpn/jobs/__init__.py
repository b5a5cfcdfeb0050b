"""Jobs: work over the log or a queue that an administrator began, and that goes on after a stop."""
