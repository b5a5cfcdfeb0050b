"""``python -m gateway`` is the command ``rewind``."""

from gateway.cli import main

main(prog_name="rewind")
