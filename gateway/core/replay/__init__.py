"""Replays as rules: where one starts, the states it goes through, its pace."""
