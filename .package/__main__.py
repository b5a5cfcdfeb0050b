"""
``./run package``: builds all packages of Rewind, into ``build/packages``.

The same commit gives the same bytes. ``--test`` then installs the packages as people would, and prints the results.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import chart
import deb
import image
import roots
import sbom
import trials
import wheels
from checkout import ROOT, Checkout, Failed, say

KINDS = ("deb", "image", "chart", "sbom")


def main() -> int:
    """The exit status: 0, or 1 where something could not be built or does not hold."""
    parser = argparse.ArgumentParser(
        prog="./run package",
        description="Builds the packages that Rewind is installed from. The same commit gives the same bytes.",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=ROOT / "build" / "packages",
        help="folder for the packages (build/packages); emptied first",
    )
    parser.add_argument(
        "--only",
        nargs="+",
        choices=KINDS,
        default=KINDS,
        help="what to build in addition to the wheels (all)",
    )
    parser.add_argument(
        "--here",
        action="store_true",
        help="compile with this machine's tools, not in a fresh Debian 12: quick, for machines like this one",
    )
    parser.add_argument(
        "--engine", type=Path, metavar="WHEEL", help="the wheel of the engine, already compiled"
    )
    parser.add_argument(
        "--test", action="store_true", help="then install the packages in fresh systems, and use them"
    )
    arguments = parser.parse_args()
    output = arguments.output.resolve()
    try:
        build(Checkout(), output, arguments.only, arguments.engine, here=arguments.here)
        if arguments.test:
            roots.need_root()
            trials.all_of(Checkout(), output, arguments.only, here=arguments.here)
    except Failed as failed:
        say(str(failed))
        return 1
    return 0


def build(checkout: Checkout, output: Path, kinds: Sequence[str], engine: Path | None, *, here: bool) -> None:
    """Builds packages into a folder, which has nothing else afterwards."""
    began = time.monotonic()
    if not here:
        roots.need_root()
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    with roots.scratch(output.with_name(f"{output.name}.making")) as scratch:
        say("the wheels and the source distribution")
        made = wheels.build(checkout, output, scratch, here=here, engine=engine)
        if "deb" in kinds:
            say("the Debian package")
            deb.build(checkout, made, output, scratch)
        if "image" in kinds:
            say("the images")
            image.build(checkout, made, output, scratch)
        if "chart" in kinds:
            say("the Helm chart")
            chart.build(output, scratch, checkout.version, checkout.epoch)
        if "sbom" in kinds:
            say("the bill of materials")
            file = output / f"rewind-gateway-{checkout.version}.cdx.json"
            sbom.write(
                checkout, file, ["archive", "base", "oauth", "postgresql", "telemetry"], wheels.OLDEST_PYTHON
            )
    write_sums(output)
    for path in sorted(output.iterdir()):
        print(path)
    say(f"done in {time.monotonic() - began:.0f} s")


def write_sums(folder: Path) -> None:
    """Writes ``SHA256SUMS``, as ``sha256sum --check`` reads it."""
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(folder.iterdir())
    ]
    (folder / "SHA256SUMS").write_text("".join(lines))


if __name__ == "__main__":
    sys.exit(main())
