"""Replays as they run: starts found in the log, and the log put on an endpoint again."""
