"""Erasing messages: the content is no more, and slot, id, time and topic stay."""
