"""The errors that only the bridge raises; errors of logs and archives are in ``store.archive.errors``."""

from __future__ import annotations

from store.archive.errors import LogError, LogUnavailable


class OptionError(LogError):
    """An option of ``spark.read.format("rewind")`` is unknown, missing, or has a bad value."""

    code = "REWIND_OPTION"


class SchemaError(LogError):
    """The user's schema names a column the log does not have, or gives one another type."""

    code = "REWIND_SCHEMA"


class UnreadableMessage(LogError):
    """A delivery is no AMQP message, or lacks an annotation that every log reader gets."""

    code = "REWIND_MESSAGE"


class Refused(LogUnavailable):
    """
    The broker ended a link with an error (AMQP 1.0, 2.8.14).

    Attributes:
        condition: The AMQP error condition.
        info: The map that came with it (a replay refusal carries ``rewind:replay-error`` and ``subcode``).
    """

    code = "REWIND_REFUSED"

    def __init__(self, sentence: str, condition: str = "", info: dict[str, object] | None = None) -> None:
        super().__init__(sentence)
        self.condition = condition
        self.info = info or {}

    def __reduce__(self) -> tuple[type[Refused], tuple[str, str, dict[str, object]]]:  # type: ignore[override]
        return type(self), (self.sentence, self.condition, self.info)
