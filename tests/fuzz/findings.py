"""What went wrong: tried again on a gateway of its own, made small by halving, and written down to be replayed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.fuzz.made.kind import Kind
from tests.fuzz.playing import GatewayGone, play
from tests.fuzz.target import Target

MOST_TRIALS = 24
"""Gateways that are started to make one finding small; each takes about two seconds."""

_SHOWN_BYTES = 4_096

MakeTarget = Callable[[], Target]


@dataclass(slots=True)
class Finding:
    """
    Something that must not be.

    Attributes:
        what: A sentence.
        suspects: Kinds and numbers of the inputs that may have caused it; none where it was not an input's doing.
        log: Lines of the gateway's that tell of it.
        cause: The inputs that cause it again on a gateway of their own; none where it did not happen again.
    """

    what: str
    suspects: list[tuple[str, range]] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    cause: tuple[str, list[int]] | None = None


def trouble(target: Target, kind: Kind, seed: int, numbers: Sequence[int]) -> str | None:
    """Send these inputs to a gateway, connection by connection, and say what went wrong."""
    try:
        for first in range(0, len(numbers), kind.at_once):
            batch = numbers[first : first + kind.at_once]
            while batch:
                inputs = [kind.input(seed, number, place) for place, number in enumerate(batch)]
                played = asyncio.run(play(kind, target.addresses[kind.where], inputs))
                if played.wrong:
                    return played.wrong
                batch = batch[played.handled :]
    except GatewayGone:
        pass
    if not target.gateway.is_running:
        return "the gateway has died"
    return logged_mistake(target)


def logged_mistake(target: Target) -> str | None:
    """A mistake of its own that a gateway has logged."""
    mistakes = target.gateway.mistakes()
    return f"the gateway logged a mistake: {mistakes[0][:500]}" if mistakes else None


def narrowed(numbers: Sequence[int], fails: Callable[[Sequence[int]], bool]) -> list[int]:
    """The half of the half … that still fails; ``numbers`` as they are known to."""
    left = list(numbers)
    while len(left) > 1:
        middle = len(left) // 2
        if fails(left[:middle]):
            left = left[:middle]
        elif fails(left[middle:]):
            left = left[middle:]
        else:
            break
    return left


def find_cause(finding: Finding, seed: int, make_target: MakeTarget) -> None:
    """Look for the inputs, among the suspects, that bring the finding back, and set its ``cause``."""
    trials = MOST_TRIALS

    for name, suspects in finding.suspects:
        said: list[str] = []

        def fails(numbers: Sequence[int], name: str = name, said: list[str] = said) -> bool:
            nonlocal trials
            trials -= 1
            if trials < 0:
                return False
            with make_target() as target:
                found = trouble(target, target.kinds[name], seed, numbers)
                if found is None and target.gateway.is_running:
                    # Its log comes a moment later than its answers: all of it is there once it has ended.
                    target.gateway.stop()
                    found = logged_mistake(target)
            said += [found] if found else []
            return found is not None

        if fails(list(suspects)):
            finding.cause = (name, narrowed(list(suspects), fails))
            finding.what = f"{finding.what}; alone: {said[-1]}"
            return


def write(finding: Finding, seed: int, folder: Path, kinds: dict[str, Kind]) -> Path:
    """
    Write a finding down: what, which inputs, what was sent (in hex), and the log's lines.

    Returns:
        The file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    name, numbers = finding.cause or next(
        ((name, list(suspects)) for name, suspects in finding.suspects), ("gateway", [])
    )
    sent = {
        number: kinds[name].input(seed, number)[:_SHOWN_BYTES].hex()
        for number in numbers[:5]
        if name in kinds
    }
    replay = f"./run soak fuzz --seed {seed} --replay {name}:{numbers[0]}-{numbers[-1]}" if numbers else None
    file = folder / f"{name}-{numbers[0] if numbers else 0}-{len(list(folder.iterdir()))}.json"
    content = asdict(finding) | {
        "suspects": [[each, kept.start, kept.stop] for each, kept in finding.suspects]
    }
    file.write_text(json.dumps(content | {"seed": seed, "replay": replay, "sent": sent}, indent=1))
    return file
