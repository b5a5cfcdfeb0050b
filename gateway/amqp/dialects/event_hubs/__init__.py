"""What the commands of Event Hubs' clients do here, and what their connections need."""
