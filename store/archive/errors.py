"""
Errors that are raised on purpose when a replay log or its archive is read from outside the gateway.

Spark keeps only the text of an exception that crosses from a Python worker to the driver. So each message starts with a
stable code in brackets, and is one sentence that a person can act on. ``LogError.code`` is the code.
"""

from __future__ import annotations


class LogError(Exception):
    """
    Base of these errors.

    Attributes:
        code: Stable; the text begins with it.
        sentence: The text without the code.
    """

    code = "REWIND_ERROR"

    def __init__(self, sentence: str) -> None:
        super().__init__(f"[{self.code}] {sentence}")
        self.sentence = sentence

    def __reduce__(self) -> tuple[type[LogError], tuple[str]]:
        """Pickle by the sentence without the code, so that the code is not put in front twice."""
        return type(self), (self.sentence,)


class LogUnavailable(LogError):
    """The log cannot be read now. The same request may succeed later."""


class ConnectionFailed(LogUnavailable):
    """A broker cannot be reached, does not speak AMQP 1.0, refuses the login, or goes away; or a place is missing."""

    code = "REWIND_CONNECTION"


class DataLoss(LogError):
    """A range of the log could not be read completely: messages are missing from what was delivered."""

    code = "REWIND_DATA_LOSS"


class ArchiveError(LogError):
    """An archive cannot be read or written, is damaged, or is in use by another archiver."""

    code = "REWIND_ARCHIVE"
