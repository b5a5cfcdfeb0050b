"""How pages are read out of a file: rows packed into few values, and searches."""
