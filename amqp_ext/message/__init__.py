"""Encoded messages and their sections: finds, reads and annotates them without encoding the message again."""
