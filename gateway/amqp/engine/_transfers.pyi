from collections.abc import Callable, Sequence
from typing import Final

from gateway.core.model import Row

SIGNATURES: Final[dict[str, str]]

def bind(addresses: dict[str, int], /) -> None: ...
def top(collector: int, /) -> tuple[int, int] | None: ...
def skip(collector: int, kind: int, link: int, /) -> None: ...
def take_messages(
    link: int, max_bytes: int, is_batch: Callable[[bytes], bool] | None, /
) -> tuple[list[bytes], list[int] | None, int]: ...
def settle(deliveries: Sequence[int], outcome: int, /) -> None: ...
def send(
    link: int,
    rows: Sequence[Row],
    pieces: tuple[bytes, bytes, bytes, bytes, bytes] | None,
    front_of: Callable[[Row], bytes],
    unsettled: dict[int, int] | None,
    in_batch: bool,
    /,
) -> int: ...
def take_outcomes(
    collector: int, unsettled: dict[int, int], accepted: list[int], confirm: list[int], /
) -> int: ...
def pull(transport: int, /) -> bytearray: ...
def plain_frames(
    data: bytes, position: int, begun: set[int], continued: set[int], next_ids: dict[int, int], /
) -> int: ...
