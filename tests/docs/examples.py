"""
The fenced blocks of the documentation, and a shell that runs them as a reader would: in order, a folder for each page.

A comment before a block says what the block is:

========================  ==============================================================================
``<!-- file: NAME -->``   to be saved under this name; it is run by a later block
``<!-- gateway -->``      TOML: the configuration of this page's gateway; ``sh``: the command that starts it
``<!-- output -->``       what the block before prints; ``…`` stands for anything within a line
``<!-- fails -->``        its last command ends with a status that is not 0
``<!-- spark -->``        needs Spark: run with the tests of Spark
``<!-- not run: … -->``   cannot be run here, and why
========================  ==============================================================================

Without such a comment, ``sh`` and ``python`` are run, and ``toml`` is checked as a configuration.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from contextlib import AbstractContextManager, chdir
from dataclasses import dataclass
from pathlib import Path

from click.testing import CliRunner

from gateway.cli import main as rewind
from interop.clients import SHORT_LIVED_JAVA
from tests.support.forked_gateway import ForkedGateway

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
RUN = {"sh", "python", "toml"}
"""Languages whose blocks the tests run."""
SHOWN = {"text", "json", "mermaid"}
"""Languages whose blocks are only shown."""

_BLOCK = re.compile(
    r"(?:^ *<!-- (?P<mark>[a-z ]+)(?:: (?P<value>[^\n]*?))? -->\n)?"
    r"^(?P<indent> *)```(?P<language>\S*)\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
_ADDRESSES = {"amqp": "127.0.0.1:5672", "admin": "127.0.0.1:8672"}
"""The ports in the pages; here they are replaced by free ones."""
_SPARK_DEFAULTS = f"""\
spark.driver.extraJavaOptions {" ".join(SHORT_LIVED_JAVA)}
spark.sql.shuffle.partitions 1
spark.ui.enabled false
"""
"""Spark settings that a page leaves out: a quick start, for a few rows."""


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    page: Path
    line: int
    language: str
    text: str
    mark: str = ""
    value: str = ""

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def is_run(self) -> bool:
        """Whether the tests run or check it."""
        return self.language in RUN and self.mark != "not run"


def blocks(page: Path) -> list[Block]:
    """The blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(
            page,
            text.count("\n", 0, found.start("language")) + 1,
            found["language"],
            textwrap.dedent(found["text"]),
            (found["mark"] or "").strip(),
            (found["value"] or "").strip(),
        )
        for found in _BLOCK.finditer(text)
    ]


class Reader(AbstractContextManager["Reader"]):
    """
    A reader who types the commands of a page in a folder of its own.

    The folder looks like a checkout after ``./run``: it has ``.venv``, and its ``run serve`` is ``rewind serve``.

    Attributes:
        environment: The environment of the commands; after the gateway's start with its addresses.

    Args:
        folder: An empty folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._gateway: ForkedGateway | None = None
        self._addresses = dict(_ADDRESSES)
        self._output = ""
        binaries = Path(sys.executable).parent
        (folder / ".venv").symlink_to(sys.prefix)
        run = folder / "run"
        run.write_text(
            f'#!/bin/sh\ncase $1 in spark) shift; exec "{sys.executable}" "$@" ;; esac\nexec rewind "$@"\n'
        )
        run.chmod(0o755)
        (folder / "spark_bridge").symlink_to(ROOT / "spark_bridge")
        (folder / "spark-conf").mkdir()
        (folder / "spark-conf" / "spark-defaults.conf").write_text(_SPARK_DEFAULTS)
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("REWIND_")},
            "PATH": f"{binaries}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "COLUMNS": "200",
            "SPARK_CONF_DIR": str(folder / "spark-conf"),
        }
        self._shell: subprocess.Popen[str] | None = None

    def __exit__(self, *exception: object) -> None:
        if self._shell is not None:
            self._shell.terminate()
            self._shell.communicate()
        self._stop_gateway()

    def _stop_gateway(self) -> None:
        if self._gateway is not None:
            self._gateway.terminate()
            self._gateway.wait()

    def read(self, block: Block) -> str:
        """Do what a block says; returns the last output."""
        match block.mark, block.language:
            case "output", _:
                self._compare(block)
            case "file", _:
                self._save(block.value, block)
            case "gateway", "toml":
                self._save("rewind.toml", block)
                self._start_gateway("--config", "rewind.toml")
            case "gateway", _:
                assert block.text.startswith("./run serve")
                self._start_gateway()
            case _, "toml":
                self._check(block)
            case _, "python":
                self._save("example.py", block)
                self._type(block, "python example.py")
            case _:
                self._serve()  # which needs the gateway's addresses
                self._type(block, self._here(block.text))
        return self._output

    def _here(self, text: str) -> str:
        for kind, address in _ADDRESSES.items():
            text = text.replace(address, self._addresses[kind])
        return text

    def _save(self, name: str, block: Block) -> None:
        self._serve()
        self._folder.joinpath(name).write_text(self._here(block.text), encoding="utf-8")

    def _check(self, block: Block) -> None:
        file = self._folder / "check.toml"
        file.write_text(block.text, encoding="utf-8")
        # In this process: another process would take a second to start.
        with chdir(self._folder):
            checked = CliRunner().invoke(rewind, ["check-config", "--config", file.name])
        assert checked.exit_code == 0, f"{block}: {checked.output}"

    def _compare(self, block: Block) -> None:
        form = ".*".join(re.escape(part) for part in self._here(block.text).rstrip().split("…"))
        found = "\n".join(line.rstrip() for line in self._output.rstrip().splitlines())
        assert re.fullmatch(form, found), f"{block}: what is printed is\n{self._output}"

    def _serve(self) -> None:
        if self._gateway is None:
            self._start_gateway()

    def _start_gateway(self, *options: str) -> None:
        self._stop_gateway()
        configured = ""
        if options:  # the listeners are then those of the configuration, on free ports
            file = self._folder / "rewind.toml"
            configured = re.sub(r"^port = 5\d+", "port = 0", file.read_text(), flags=re.MULTILINE)
            file.write_text(configured)
        ports = ["--admin", "127.0.0.1:0"]
        if "[[listener]]" not in configured:
            ports += ["--listen", "127.0.0.1:0"]
        self._gateway = ForkedGateway(
            [*ports, *options], self._folder, self._folder / "gateway.log", self.environment
        )
        with self._gateway.stdout as said:
            ready = json.loads(said.readline())
        self._addresses = {
            kind: url.partition("://")[2]
            for kind, url in (("amqp", ready["amqp"][0]), ("admin", ready["admin"]))
        }
        addresses = {"REWIND_URL": ready["amqp"][0], "REWIND_ADMIN": ready["admin"]}
        self.environment |= addresses
        if self._shell is not None and self._shell.stdin is not None:
            self._shell.stdin.write("".join(f"export {name}={url}\n" for name, url in addresses.items()))

    def _type(self, block: Block, command: str) -> None:
        self._serve()
        if self._shell is None:
            self._shell = subprocess.Popen(
                ["bash"],
                cwd=self._folder,
                env=self.environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        typed = self._folder / "typed.sh"
        typed.write_text(command)
        may_fail = block.mark == "fails"
        self._shell.stdin.write(
            f"set {'+' if may_fail else '-'}e; . ./typed.sh < /dev/null; status=$?; echo; echo ready $status\n"
        )
        self._shell.stdin.flush()
        lines: list[str] = []
        while True:
            line = self._shell.stdout.readline()
            assert line, (
                f"{block} failed:\n{''.join(lines)}\n{(self._folder / 'gateway.log').read_text()[-2000:]}"
            )
            if found := re.fullmatch(r"ready (\d+)\n", line):
                break
            lines.append(line)
        self._output = "".join(lines).removesuffix("\n")
        assert may_fail == (found[1] != "0"), f"{block} ended with {found[1]}:\n{self._output}"
