"""What the command prints for people: times, sizes and counts in words, tables, colours on a terminal."""
