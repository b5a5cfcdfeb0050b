"""A gateway that leaves a list of the modules that it has loaded, at its end, in the file that ``LOADED`` names."""

import atexit
import json
import os
import sys
from pathlib import Path


def tell() -> None:
    """Write it."""
    loaded = [name for name, module in sys.modules.items() if module is not None]
    Path(os.environ["LOADED"]).write_text(json.dumps(loaded))


if __name__ == "__main__":
    atexit.register(tell)
    from gateway.cli import main

    main()
