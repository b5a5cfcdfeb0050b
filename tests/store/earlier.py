"""Files written by earlier versions of the gateway, each named after the last migration of its version."""

from __future__ import annotations

import lzma
from pathlib import Path
from typing import Final

FILES: Final = Path(__file__).parent / "files"


def earlier_file(name: str, to: Path) -> Path:
    """Copy one of them: it has queues, messages, some of them consumed, a stream, a point, an index and a replay."""
    packed = FILES / f"{name}.db.xz"
    to.write_bytes(
        lzma.decompress(packed.read_bytes()) if packed.exists() else (FILES / f"{name}.db").read_bytes()
    )
    return to
