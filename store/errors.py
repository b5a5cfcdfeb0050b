"""Errors of a store: errors of opening carry a hint for the operator, errors of reading and writing a reason."""

from __future__ import annotations

from store.checksum import NOT_AS_WRITTEN


class StoreError(Exception):
    """
    A store or the data folder cannot be used.

    Attributes:
        operation: What was being done.
        path: The file or folder.
        hint: What the operator can do about it.
    """

    def __init__(self, operation: str, path: object, cause: object, hint: str) -> None:
        super().__init__(f"{operation} {path}: {cause}. {hint}")
        self.operation = operation
        self.path = str(path)
        self.hint = hint


class StoreLocked(StoreError):
    """Another gateway uses this data folder."""


class StoreHeld(StoreError):
    """
    Another gateway has the store of this Message VPN, and serves its clients.

    Attributes:
        active: HOST:PORT of that gateway for clients, if known.
    """

    def __init__(
        self, operation: str, path: object, active: str | None, hint: str = "This gateway waits to take over"
    ) -> None:
        other = f"gateway {active}" if active else "another gateway"
        super().__init__(operation, path, f"{other} is active", hint)
        self.active = active


class StoreTooNew(StoreError):
    """The file was written by a later version."""


class WriteFailed(Exception):
    """
    A transaction was rolled back, and nothing of it is stored, except as ``Deposed`` says. The text is the engine's
    reason.
    """


class Deposed(WriteFailed):
    """
    Another gateway has taken over the store: this gateway stores nothing from now on. Whether the batches that fail
    with this error are stored is unknown here: they may have been committed before the takeover, and the answer lost.
    """


class ReadFailed(Exception):
    """The engine could not read. The text is its reason."""


class DamagedMessage(ReadFailed):
    """A message is not what was written: its checksum is wrong."""

    def __init__(self, message_id: int) -> None:
        super().__init__(f"message {message_id} {NOT_AS_WRITTEN}")


class LogTrimmed(Exception):
    """The log was trimmed beyond the position that was to be read."""

    def __init__(self, position: int, first_id: int) -> None:
        super().__init__(f"position {position} was trimmed; the log begins at {first_id}")
        self.first_id = first_id


class TakenOut(LogTrimmed):
    """A retention rule removed messages from the position to be read on, before readers were told of it."""

    def __init__(self, position: int, below: int) -> None:
        Exception.__init__(self, f"a retention rule removed messages from id {position} on")
        self.first_id = below
