"""What a Message VPN remembers of the last hour, in memory, for people: rates, and how deep its endpoints were."""
