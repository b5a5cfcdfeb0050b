"""Event Hubs' dialect."""
