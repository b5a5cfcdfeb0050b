"""The rules of replays: their starts, states, commands, records and pace."""
