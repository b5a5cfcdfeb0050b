"""Each verb of `./run` installs what its program imports: with the locks it names, and no other, it can be imported."""

import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Modules of a program that another call of its verb imports, with another lock.
ELSEWHERE = {"tests.bench": r"\.peers|\.spark_reads", "gateway.cli": r"\.archiving", "interop": r"\.demo"}

IMPORT_ALL = """
import importlib, pkgutil, re, sys

program, elsewhere, *missing = sys.argv[1:]


class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, NotInstalled())
module = importlib.import_module(program)
for found in pkgutil.walk_packages(getattr(module, "__path__", ()), f"{program}."):
    if not re.search(rf"\\.test_|{elsewhere}", found.name):
        importlib.import_module(found.name)
"""


def programs() -> Iterator[tuple[str, tuple[str, ...]]]:
    """What `./run` starts of the project's own, and the locks it installs for that."""
    locks: tuple[str, ...] = ()
    for line in (ROOT / "run").read_text().partition("\nverb=")[2].splitlines():
        if ready := re.search(r"\bready\b([ \w]*)", line):
            locks = ("base", "build", *ready[1].split())
        if started := re.search(r'bin/(?:python" -m ((?:tests|interop)[.\w]*)|rewind")', line):
            yield started[1] or "gateway.cli", locks


def normalized(name: str) -> str:
    """As PyPI compares the names of distributions."""
    return re.sub(r"[-_.]+", "-", name).lower()


PROGRAMS = dict(programs())


@pytest.mark.parametrize(
    "program",
    [pytest.param(name, marks=pytest.mark.spark if "demo" in PROGRAMS[name] else ()) for name in PROGRAMS],
)
def test_a_verb_installs_what_its_program_imports(program: str) -> None:
    texts = [(ROOT / ".locks" / f"{lock}.txt").read_text() for lock in PROGRAMS[program]]
    names = [
        name for text in texts for name in re.findall(r"^([\w.-]+)(?:\[.*\])?==", text, flags=re.MULTILINE)
    ]
    installed = {"rewind-gateway", *map(normalized, names)}
    missing = [
        module
        for module, distributions in packages_distributions().items()
        if installed.isdisjoint(map(normalized, distributions))
    ]
    assert missing, "this environment has more than any verb installs"
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, program, ELSEWHERE.get(program, "^$"), *missing],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_every_verb_is_looked_at() -> None:
    """The rest are pytest, tox and Sphinx, which the tests themselves run, and a user's own program."""
    assert {
        "gateway.cli",
        "interop",
        "interop.demo",
        "tests.bench",
        "tests.bench.peers",
        "tests.ha",
        "tests.ha.rounds",
        "tests.soak",
        "tests.soak.keys",
        "tests.fuzz",
        "tests.native",
    } == PROGRAMS.keys()
