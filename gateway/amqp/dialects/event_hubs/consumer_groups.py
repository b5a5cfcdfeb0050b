"""
Who reads a partition for a consumer group: receivers with an owner level (epoch), and without.

As Event Hubs has it: of two receivers with a level the later has the partition if its level is as high or higher, and
is refused else; a receiver without one is refused beside one that has one, and is thrown out by it. Any number without
one may read side by side. Levels hold while their receiver is attached, and no longer.

Source: Microsoft, "Event Hubs: epoch receivers" (archived blog) and the documentation of ``PartitionReceiver``.
"""

from __future__ import annotations

from amqp_ext.lifetime import Lifetime
from gateway.amqp.dialects.hooks import GroupReader
from gateway.core.errors import ErrorCode, Refused


class ConsumerGroups:
    """The receivers of all hubs of one Message VPN."""

    def __init__(self) -> None:
        self._receivers: dict[tuple[str, str], dict[GroupReader, int | None]] = {}

    def check(self, queue: str, group: str, epoch: int | None) -> None:
        """
        Whether one more receiver may come.

        Raises:
            Refused: STOLEN, a receiver with a higher level has the partition.
        """
        levels = [level for level in self._receivers.get((queue, group), {}).values() if level is not None]
        if not levels or (epoch is not None and epoch >= levels[0]):
            return
        asked = "a receiver without an owner level" if epoch is None else f"owner level {epoch}"
        raise Refused(
            ErrorCode.STOLEN,
            f"a receiver of owner level (epoch) {levels[0]} reads {queue!r} for consumer group {group!r}, and so "
            f"{asked} is not taken; attach with that level or a higher one, or detach the other first",
        )

    def join(self, queue: str, group: str, epoch: int | None, reader: GroupReader) -> Membership:
        """
        One more receiver; those that it throws out are detached.

        Raises:
            Refused: As ``check``.
        """
        self.check(queue, group, epoch)
        receivers = self._receivers.setdefault((queue, group), {})
        thrown_out = [] if epoch is None else list(receivers)
        receivers[reader] = epoch
        for other in thrown_out:
            other.refuse(
                Refused(
                    ErrorCode.STOLEN,
                    f"a receiver of owner level (epoch) {epoch} took over {queue!r} for consumer group {group!r}",
                )
            )
        return Membership(self, (queue, group), reader)

    def leave(self, key: tuple[str, str], reader: GroupReader) -> None:
        """A receiver is gone. Twice does no harm."""
        receivers = self._receivers.get(key)
        if receivers is not None:
            receivers.pop(reader, None)
            if not receivers:
                del self._receivers[key]


class Membership:
    """What a receiver has of its consumer group: released when its link is gone."""

    lifetime = Lifetime.DELETE_ON_CLOSE

    def __init__(self, groups: ConsumerGroups, key: tuple[str, str], reader: GroupReader) -> None:
        self._groups = groups
        self._key = key
        self._reader = reader

    def release(self) -> None:
        """The receiver is gone. Twice does no harm."""
        self._groups.leave(self._key, self._reader)
