"""JMS selectors and SQL filters: read, checked, and evaluated over messages."""
