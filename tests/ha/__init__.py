"""Two gateways on a PostgreSQL cluster under Patroni, all on this machine: parts are killed, and messages counted."""
