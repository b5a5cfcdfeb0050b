"""``python -m tests.fuzz``: fuzz a live gateway from where the last run stopped, or replay what was found."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.fuzz.campaign import Campaign, Settings, trouble
from tests.fuzz.driver import Progress
from tests.fuzz.made.kinds import NAMES
from tests.fuzz.target import Target

FOLDER = Path(__file__).resolve().parents[2] / "build" / "fuzz"


def main(arguments: list[str] | None = None) -> int:
    """Exit status 0 if nothing was found, else 1."""
    parser = argparse.ArgumentParser(
        prog="./run soak fuzz",
        description="Send generated inputs to a live gateway: frames, messages, addresses, filters, requests. Goes on "
        "where the last run stopped. Exit status 1 if something was found; build/fuzz/findings has it.",
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="minutes to run (10)")
    parser.add_argument(
        "--only",
        metavar="KIND",
        action="append",
        choices=NAMES,
        default=[],
        help=f"only this kind of input: {', '.join(NAMES)}; may be repeated",
    )
    parser.add_argument(
        "--fresh", action="store_true", help="start again at the first input, with a new seed"
    )
    parser.add_argument("--seed", type=int, help="use this seed; starts again if the last run had another")
    parser.add_argument(
        "--replay",
        metavar="KIND:NUMBER[-LAST]",
        help="send only these inputs, to a new gateway, and report what happens",
    )
    parser.add_argument(
        "--longest-wait",
        metavar="S",
        type=float,
        default=0.25,
        help="longest wait in seconds that another client may notice (0.25; more on a busy machine)",
    )
    parser.add_argument(
        "--growth",
        metavar="MB",
        type=int,
        default=400,
        help="megabytes by which the gateway may grow in a round of five minutes (400)",
    )
    options = parser.parse_args(arguments)
    state = FOLDER / "state.json"
    if options.replay:
        seed = Progress(state).seed if options.seed is None else options.seed
        return replay(options.replay, seed)
    progress = Progress(state, is_fresh=options.fresh, seed=options.seed)
    progress.save()
    _say(f"seed {progress.seed}, {progress.total:,} inputs so far")
    settings = Settings(
        FOLDER,
        seconds=options.minutes * 60,
        only=options.only,
        longest_wait_s=options.longest_wait,
        growth_mb=options.growth,
    )
    campaign = Campaign(settings, _say)
    campaign.run()
    _say(f"longest wait of the bystander {campaign.longest_s:.3f} s; {len(campaign.files)} findings")
    return 1 if campaign.files else 0


def replay(text: str, seed: int) -> int:
    """Send inputs again to a new gateway; exit status 1 if something goes wrong."""
    name, _, numbers = text.partition(":")
    first, _, last = numbers.partition("-")
    chosen = range(int(first), int(last or first) + 1)
    with Target() as target:
        kind = target.kinds[name]
        if len(chosen) == 1:
            _say(f"{name}:{first} of seed {seed}: {kind.input(seed, chosen[0]).hex()}")
        found = trouble(target, kind, seed, chosen)
    _say(found or "nothing went wrong")
    return 1 if found else 0


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
