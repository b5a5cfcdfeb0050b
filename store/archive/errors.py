"""
What reading a replay log or its archive from outside the gateway raises on purpose.

Spark keeps only the text of an exception that crosses from a Python worker to the driver, so each message starts with
a stable code in brackets and is one sentence a person can act on. ``LogError.code`` is that code.
"""

from __future__ import annotations


class LogError(Exception):
    """
    Base of these errors.

    Attributes:
        code: Stable; it stands at the head of the text.
        sentence: The text without it.
    """

    code = "REWIND_ERROR"

    def __init__(self, sentence: str) -> None:
        super().__init__(f"[{self.code}] {sentence}")
        self.sentence = sentence

    def __reduce__(self) -> tuple[type[LogError], tuple[str]]:
        """Pickle by the bare sentence, so that the code is not put in front twice."""
        return type(self), (self.sentence,)


class LogUnavailable(LogError):
    """The log cannot be read now; with the same question it may be later."""


class ConnectionFailed(LogUnavailable):
    """A broker could not be reached, did not speak AMQP 1.0, refused the login, or went away; a place is not there."""

    code = "REWIND_CONNECTION"


class DataLoss(LogError):
    """A range of the log could not be read whole: what was delivered is not all there should have been."""

    code = "REWIND_DATA_LOSS"


class ArchiveError(LogError):
    """An archive cannot be read or written, is damaged, or is in use by another archiver."""

    code = "REWIND_ARCHIVE"
