"""`./run interop`: runs every foreign client there is against a gateway of its own."""

import sys


def main() -> int:
    """Says what was run; the exit status is that of the worst client."""
    print("interop: no foreign clients yet, nothing was run.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
