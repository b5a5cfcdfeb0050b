"""Names that administrators give, as of points and replays: one rule for all of them."""

from __future__ import annotations

from amqp_ext.replay_start.modifiers import NAME_CHARACTERS
from gateway.core.errors import ErrorCode, Refused


def check_name(of: str, name: str) -> str:
    """
    The name, if something may be called so.

    Args:
        of: What it is a name of, for the error: ``a point``.

    Raises:
        Refused: INVALID_FIELD, it is blank, too long, or has characters that cannot be seen.
    """
    if not name.strip() or not name.isprintable() or len(name) > NAME_CHARACTERS:
        raise Refused(
            ErrorCode.INVALID_FIELD,
            f"{of}'s name has 1 to {NAME_CHARACTERS} printable characters, and {name[:40]!r} does not",
        )
    return name
