"""The replay log as rules: what it takes, what it keeps, and the places in it that have names."""
