"""What is wrong with a configuration, each thing with its place, all of them at once."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


class ConfigError(ValueError):
    """A configuration cannot be used.

    ``problems`` has a sentence for each thing that is wrong, beginning with the setting's path in the file
    (``vpn.default.queue.orders.quota_mb``) or the option's name on the command line (``--listen``).
    """

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = list(problems)


@dataclass(frozen=True, slots=True)
class ConfigProblem:
    """One thing that is wrong at ``path``; ``says`` ends the sentence that the path begins.

    ``given`` are the paths of other settings that the sentence takes for granted.
    """

    path: str
    says: str
    given: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.path} {self.says}"

    def may_follow_from(self, other: "ConfigProblem") -> bool:
        """Whether ``other`` is about a setting this one builds on, or a table around it or within it."""
        return any(_overlap(_steps(path), _steps(other.path)) for path in (self.path, *self.given))


def unrelated(problems: Iterable[ConfigProblem], reported: Sequence[ConfigProblem]) -> list[ConfigProblem]:
    """Those of ``problems`` that cannot be a mere consequence of one already reported."""
    return [
        problem for problem in problems if not any(problem.may_follow_from(earlier) for earlier in reported)
    ]


def _overlap(one: list[str], other: list[str]) -> bool:
    return all(ours == theirs for ours, theirs in zip(one, other, strict=False))


def _steps(path: str) -> list[str]:
    return path.replace("[", ".[").split(".")
