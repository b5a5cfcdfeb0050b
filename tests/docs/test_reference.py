"""The reference, the contributors' pages and the commands of `./run` agree with the code."""

from __future__ import annotations

import ast
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from click.testing import CliRunner

from docs.generate import pages, rendered
from gateway.cli import main as rewind
from tests.docs.examples import ROOT, Block, Reader

# --- The reference says what the code says ----------------------------------------------------------------------------

TASKS = ROOT / "docs" / "reference" / "http.md"
NO_SUCH_CLIENT = 6
"""The exit status for disconnecting a client that does not exist."""


@pytest.mark.slow
@pytest.mark.system
@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_is_what_the_code_gives(page: Path) -> None:
    """Each generated page is up to date; ``./run docs --write`` writes it."""
    text = page.read_text(encoding="utf-8")
    assert text == rendered(text)


def _tasks(column: int) -> list[str]:
    """The commands in one column of the table of tasks."""
    table = TASKS.read_text(encoding="utf-8").partition("| Task |")[2].partition("\n\n")[0]
    cells = [line.split(" | ")[column] for line in table.splitlines()[2:]]
    return [command for cell in cells for command in re.findall(r"`([^`]+)`", cell)]


def _now(command: str, replay_id: str) -> str:
    """A command with this gateway's ids and times instead of the page's."""
    now = datetime.now(UTC).replace(microsecond=0)
    command = command.replace("rmid1:…", replay_id).replace("1767323045", str(round(now.timestamp())))
    return command.replace("2026-01-02T03:04:05Z", now.isoformat().replace("+00:00", "Z"))


def _typed(reader: Reader, text: str, *, may_fail: bool = False) -> str:
    return reader.read(Block(TASKS, 0, "sh", text, "fails" if may_fail else ""))


@pytest.mark.slow
@pytest.mark.system
def test_every_task_can_be_done_over_http(tmp_path: Path) -> None:
    """The commands of the table, in order; only the client to disconnect does not exist."""
    commands = _tasks(1)
    assert len(commands) > 25
    with Reader(tmp_path) as reader:
        replay_id = _message(reader)
        setup = TASKS.read_text(encoding="utf-8").partition("```sh\n")[2].partition("```")[0]
        _typed(reader, setup)
        for command in commands:
            if "cancel" in command:  # the replay must be under way: no consumer settles its messages
                _typed(reader, "ask PUT action/$V/queues/q/startReplay")
            answer = json.loads(_typed(reader, _now(command.replace("curl ", "curl -s "), replay_id)))
            code = answer["meta"].get("error", {}).get("code")
            assert code == (NO_SUCH_CLIENT if "disconnect" in command else None), f"{command}: {answer}"


@pytest.mark.slow
@pytest.mark.system
def test_every_task_can_be_done_by_the_command_line(tmp_path: Path) -> None:
    """The same with ``rewind``."""
    with Reader(tmp_path) as reader:
        replay_id = _message(reader)
        for command in _tasks(2):
            if "cancel" in command:  # the replay must be under way: no consumer settles its messages
                _typed(reader, "rewind replay start q")
            # There are no consumers, so that a replay would never end.
            typed = shlex.split(_now(command.replace("--wait", ""), replay_id))
            ran = CliRunner().invoke(rewind, typed, env=reader.environment)
            assert ran.exit_code == int("disconnect" in command), f"{command}: {ran.output}"


def _message(reader: Reader) -> str:
    """Start a gateway with a configuration file that can be reloaded, and publish a message; returns the replay id."""
    reader.read(Block(TASKS, 0, "toml", "[[listener]]\nport = 5672\n", "gateway"))
    _typed(reader, "echo one > one.txt; sleep 1.1; rewind send topic://a/b one.txt")
    return str(json.loads(_typed(reader, "rewind tail 'log://>' --from last --count 1 --json"))["replayId"])


# --- The files, classes and functions in the contributors' pages exist ------------------------------------------------

PAGES = sorted((ROOT / "docs" / "contributing").glob("*.md"))
WALKS = ROOT / "docs" / "contributing" / "walks.md"
_OURS = re.compile(r"`((?:amqp_ext|gateway|store|spark_bridge|interop|tests|docs)/[\w./-]*)`")
_STEP = re.compile(r"^\| \d+ \| `(?P<file>[\w/.]+)` \| (?P<names>[^|]+) \|", re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_named_is_there(page: Path) -> None:
    """Files and folders, as paths from the repository's root."""
    missing = [path for path in _OURS.findall(page.read_text(encoding="utf-8")) if not (ROOT / path).exists()]
    assert not missing, missing


def _defined(file: Path) -> set[str]:
    """The functions and classes of a module, and methods as ``Class.method``."""
    found = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            methods = (item for item in node.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef))
            found |= {f"{node.name}.{method.name}" for method in methods}
    return found


def test_the_walks_name_what_there_is() -> None:
    """Each step of a walk names a file and functions, and the file defines them."""
    steps = [
        (found["file"], re.findall(r"`([\w.]+)`", found["names"]))
        for found in _STEP.finditer(WALKS.read_text(encoding="utf-8"))
    ]
    assert len(steps) > 20
    wrong = [
        f"{file}: {name}"
        for file, names in steps
        for name in names
        if not (ROOT / file).exists() or name not in _defined(ROOT / file)
    ]
    assert not wrong, wrong
    assert all(names for _, names in steps)


# --- Each command of `./run` installs exactly what its program imports ------------------------------------------------

# Modules of a program that are imported only by other calls of its command, with other locks.
ELSEWHERE = {"tests.bench": r"\.peers|\.spark_reads", "gateway.cli": r"\.archiving", "interop": r"\.demo"}

IMPORT_ALL = """
import importlib, json, pkgutil, re, sys

programs, missing = map(json.loads, sys.argv[1:])


class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, NotInstalled())
for program, elsewhere in programs.items():
    module = importlib.import_module(program)
    for found in pkgutil.walk_packages(getattr(module, "__path__", ()), f"{program}."):
        if not re.search(rf"\\.test_|{elsewhere}", found.name):
            importlib.import_module(found.name)
"""


def programs() -> Iterator[tuple[str, tuple[str, ...]]]:
    """The project's own programs that `./run` starts, and the locks that it installs for each."""
    locks: tuple[str, ...] = ()
    for line in (ROOT / "run").read_text().partition("\nverb=")[2].splitlines():
        if ready := re.search(r"\bready\b([ \w]*)", line):
            locks = ("base", "build", *ready[1].split())
        if started := re.search(r'bin/(?:python" -m ((?:tests|interop)[.\w]*)|rewind")', line):
            yield started[1] or "gateway.cli", locks


def normalized(name: str) -> str:
    """A distribution name as PyPI compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


PROGRAMS = dict(programs())


@pytest.mark.parametrize(
    "locks",
    [
        pytest.param(locks, marks=pytest.mark.spark if "demo" in locks else (), id=" ".join(locks))
        for locks in dict.fromkeys(PROGRAMS.values())
    ],
)
def test_a_verb_installs_what_its_program_imports(locks: tuple[str, ...]) -> None:
    """Programs with the same locks share a process, in which nothing else can be imported."""
    texts = [(ROOT / ".locks" / f"{lock}.txt").read_text() for lock in locks]
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
    imported = {name: ELSEWHERE.get(name, "^$") for name in PROGRAMS if PROGRAMS[name] == locks}
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, json.dumps(imported), json.dumps(missing)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_every_verb_is_looked_at() -> None:
    """The other commands are pytest, tox and Sphinx, which the tests run themselves, and a user's own program."""
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


@pytest.mark.parametrize(
    "arguments", [["ha", "--help"], ["soak", "ha", "-h"], ["package", "--help"], ["soak", "--help"]]
)
def test_help_installs_nothing_into_the_system(arguments: list[str], tmp_path: Path) -> None:
    """A checkout on a machine without Patroni, whose Python, pip and apt-get only say what they are asked."""
    shutil.copy(ROOT / "run", tmp_path)
    shutil.copytree(ROOT / ".locks", tmp_path / ".locks")
    programs = {".venv/bin/python": 'echo "$*"', "bin/apt-get": 'echo "apt-get $*"', ".build/install": ":"}
    for name, does in {**programs, "bin/pkg-config": ":", "bin/dpkg-deb": ":"}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o755)
    for name in ("cat", "cksum", "dirname", "head", "id", "sed", "sh", "rm"):
        (tmp_path / "bin" / name).symlink_to(shutil.which(name) or "")
    done = subprocess.run(
        [tmp_path / "run", *arguments],
        env={"PATH": str(tmp_path / "bin"), "CC": "sh"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "apt-get" not in done.stderr
    assert arguments[-1] in done.stdout or "usage: ./run" in done.stdout
