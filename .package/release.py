"""
``./run release VERSION``: cuts the changelog, commits, tags, builds the packages, and signs their sums.

Nothing leaves the machine: a person pushes the commit and the tag, and publishes the packages. The build downloads what
the locks name, and Debian's packages, as ``./run package`` always does. A release needs a build of its own, because
each package names its version, commit and date.
"""

from __future__ import annotations

import argparse
import re
import sys
from datetime import UTC, datetime

from checkout import ROOT, Checkout, Failed, run, say

GREEN = ROOT / "build" / "green"
"""Names the last commit on which all of ``./run test`` passed, with nothing uncommitted; ``./run test`` writes it."""

VERSION = re.compile(r"\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?")


def main() -> int:
    """The exit status: 0, or 1 where there is no release, and nothing has changed."""
    parser = argparse.ArgumentParser(
        prog="./run release",
        description="Makes a release of this commit: changelog, commit, tag, packages, sums. Nothing is uploaded.",
    )
    parser.add_argument("version", help="the version, such as 1.2.0")
    parser.add_argument("--key", help="sign SHA256SUMS with this gpg key")
    arguments = parser.parse_args()
    checkout = Checkout()
    try:
        check(checkout, arguments.version, arguments.key)
        make(checkout, arguments.version, arguments.key)
    except Failed as failed:
        say(str(failed))
        return 1
    return 0


def check(checkout: Checkout, version: str, key: str | None) -> None:
    """Raises ``Failed`` where this commit cannot become that version."""
    if not VERSION.fullmatch(version):
        raise Failed(f"{version!r} is no version: three numbers, such as 1.2.0, or 1.2.0rc1")
    if checkout.git("tag", "--list", f"v{version}"):
        raise Failed(f"{version} was released before: there is a tag v{version}")
    if changed := checkout.git("status", "--porcelain"):
        raise Failed(f"commit first, or put away, what is not committed:\n{changed}")
    head = checkout.git("rev-parse", "HEAD")
    if not GREEN.exists() or GREEN.read_text().strip() != head:
        raise Failed(
            f"the suite has not passed here on {head[:8]}: ./run test writes into build/green when it has"
        )
    unreleased(checkout)
    if key is not None:
        run("gpg", "--list-secret-keys", key)


def unreleased(checkout: Checkout) -> tuple[str, str]:
    """The changelog up to, and after, the heading [Unreleased]; raises ``Failed`` where nothing is under it."""
    before, heading, behind = (checkout.root / "CHANGELOG.md").read_text().partition("## [Unreleased]\n")
    if not heading or not behind.partition("\n## ")[0].strip():
        raise Failed("CHANGELOG.md has nothing under [Unreleased]: what is new in this release?")
    return before + heading, behind


def make(checkout: Checkout, version: str, key: str | None) -> None:
    """Commits, tags and builds; where that fails, removes the commit and the tag again."""
    head = checkout.git("rev-parse", "HEAD")
    front, behind = unreleased(checkout)
    today = datetime.now(UTC).strftime("%Y-%m-%d")
    (checkout.root / "CHANGELOG.md").write_text(f"{front}\n## [{version}] - {today}\n{behind}")
    project = checkout.root / "pyproject.toml"
    project.write_text(
        re.sub(r'(?m)^version = ".*"$', f'version = "{version}"', project.read_text(), count=1)
    )
    try:
        checkout.git("commit", "--all", "--quiet", "--message", f"Release {version}")
        checkout.git("tag", "--annotate", "--message", f"Rewind {version}", f"v{version}")
        run(checkout.root / "run", "package", cwd=checkout.root)
        sums = checkout.root / "build" / "packages" / "SHA256SUMS"
        if key is None:
            say("SHA256SUMS is not signed: no key was given (--key)")
        else:
            run("gpg", "--batch", "--yes", "--local-user", key, "--armor", "--detach-sign", sums)
    except BaseException:
        checkout.git("reset", "--hard", "--quiet", head)
        if checkout.git("tag", "--list", f"v{version}"):
            checkout.git("tag", "--delete", f"v{version}")
        raise
    say(f"released {version}, in build/packages. To publish: git push --follow-tags, and the packages")


if __name__ == "__main__":
    sys.exit(main())
