"""Hours of mixed traffic against one gateway: every accepted message accounted for, every resource watched."""
