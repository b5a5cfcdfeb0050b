"""All Message VPNs of a gateway: opened, taken over, lost, and changed while it runs."""
