"""Files as gateways of earlier versions left them, each named by the last step of the schema that its version knew."""

from __future__ import annotations

import lzma
from pathlib import Path
from typing import Final

FILES: Final = Path(__file__).parent / "files"


def earlier_file(name: str, to: Path) -> Path:
    """A copy of one of them: queues, messages, some of them consumed, a stream, a point, an index, a replay."""
    packed = FILES / f"{name}.db.xz"
    to.write_bytes(
        lzma.decompress(packed.read_bytes()) if packed.exists() else (FILES / f"{name}.db").read_bytes()
    )
    return to
