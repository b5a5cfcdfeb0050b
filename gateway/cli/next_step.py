"""What to type next where something is not there: the verb that lists what is, and names that look like it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

MOST_NAMES: Final = 1_000
"""Names that are compared with one that is not there."""


class _Listed(NamedTuple):
    tree: str
    key: str
    verb: str


_LISTS: Final = {
    "queues": _Listed("config", "queueName", "rewind queue list"),
    "topicEndpoints": _Listed("config", "topicEndpointName", "rewind topic-endpoint list"),
    "replayPoints": _Listed("config", "replayPointName", "rewind point list"),
    "clients": _Listed("monitor", "clientName", "rewind client list"),
    "replays": _Listed("monitor", "replayName", "rewind replay list"),
}
"""By the collection in a path."""

_ABSENT: Final = re.compile(r"there is no (queue|topic-endpoint|client|point|replay)\b", re.IGNORECASE)

NamesOf = Callable[[str, str, str], Iterable[str]]
"""Names in a tree's collection, by the attribute that has them."""


def where_to_look(names: tuple[str, ...], sentence: str, names_of: NamesOf) -> str:
    """
    What to add to a refusal; nothing where it is about something else than a thing that is not there.

    Args:
        names: The path of the request below its Message VPN.
        sentence: What the gateway said.
    """
    listed = _LISTS.get(names[0]) if len(names) > 1 else None
    if listed is None or not _ABSENT.match(sentence):
        return ""
    near = difflib.get_close_matches(names[1], set(names_of(listed.tree, names[0], listed.key)))
    meant = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    return f"{meant}`{listed.verb}` shows those there are"
