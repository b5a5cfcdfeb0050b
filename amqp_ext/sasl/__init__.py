"""SASL from the server's side, and the passwords it checks."""
