"""What can go wrong with a store: those of opening with a hint for whoever runs it, those of its use with a reason."""

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
        active: HOST:PORT that its clients use, if that is known.
    """

    def __init__(self, operation: str, path: object, active: str | None) -> None:
        super().__init__(
            operation, path, f"the gateway {active or 'of another address'} has it", "This one waits for it"
        )
        self.active = active


class StoreTooNew(StoreError):
    """The file was written by a later version."""


class WriteFailed(Exception):
    """
    A transaction was rolled back: nothing of it was stored, but for what ``Deposed`` says. The text is the engine's
    reason.
    """


class Deposed(WriteFailed):
    """
    Another gateway has taken the store over: nothing of this one's is stored from now on. Whether the batches that it
    is told with are, that gateway knows: they may have been committed before, and the answer lost.
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
    """A rule of retention took messages out behind the position that was to be read, which nobody was told of yet."""

    def __init__(self, position: int, below: int) -> None:
        Exception.__init__(self, f"from id {position} on a rule of retention took messages out")
        self.first_id = below
