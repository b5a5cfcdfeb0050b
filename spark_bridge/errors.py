"""Everything the bridge raises on purpose.

Spark keeps only the text of an exception that crosses from a Python worker to the driver, so each message
starts with a stable code in brackets and is one sentence a person can act on. ``BridgeError.code`` is that
code.
"""

from __future__ import annotations


class BridgeError(Exception):
    """Base of the bridge's errors; ``code`` is stable and stands at the head of the text."""

    code = "REWIND_ERROR"

    def __init__(self, sentence: str) -> None:
        super().__init__(f"[{self.code}] {sentence}")
        self.sentence = sentence

    def __reduce__(self) -> tuple[type[BridgeError], tuple[str]]:
        """Pickle by the bare sentence, so that the code is not put in front twice."""
        return type(self), (self.sentence,)


class OptionError(BridgeError):
    """An option of ``spark.read.format("rewind")`` is unknown, missing, or has a bad value."""

    code = "REWIND_OPTION"


class SchemaError(BridgeError):
    """The user's schema names a column the log does not have, or gives one another type."""

    code = "REWIND_SCHEMA"


class ConnectionFailed(BridgeError):
    """The broker could not be reached, did not speak AMQP 1.0, refused the login, or went away."""

    code = "REWIND_CONNECTION"


class DataLoss(BridgeError):
    """A range of the log could not be read whole: what was delivered is not all there should have been."""

    code = "REWIND_DATA_LOSS"


class ArchiveError(BridgeError):
    """An archive cannot be read or written, is damaged, or is in use by another archiver."""

    code = "REWIND_ARCHIVE"


class UnreadableMessage(BridgeError):
    """A delivery is no AMQP message, or lacks an annotation that a log reader always gets."""

    code = "REWIND_MESSAGE"


class Refused(BridgeError):
    """The broker ended a link with an error (AMQP 1.0, 2.8.14).

    ``condition`` is the AMQP error condition, ``info`` the map that came with it (a replay refusal carries
    ``rewind:replay-error`` and ``subcode``).
    """

    code = "REWIND_REFUSED"

    def __init__(self, sentence: str, condition: str = "", info: dict[str, object] | None = None) -> None:
        super().__init__(sentence)
        self.condition = condition
        self.info = info or {}

    def __reduce__(self) -> tuple[type[Refused], tuple[str, str, dict[str, object]]]:  # type: ignore[override]
        return type(self), (self.sentence, self.condition, self.info)
