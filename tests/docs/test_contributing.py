"""The contributors' pages speak of files, classes and functions that are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.docs.examples import ROOT

PAGES = sorted((ROOT / "docs" / "contributing").glob("*.md"))
WALKS = ROOT / "docs" / "contributing" / "walks.md"
_OURS = re.compile(r"`((?:amqp_ext|gateway|store|spark_bridge|interop|tests|docs)/[\w./-]*)`")
_STEP = re.compile(r"^\| \d+ \| `(?P<file>[\w/.]+)` \| (?P<names>[^|]+) \|", re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_named_is_there(page: Path) -> None:
    """Files and folders, from the root of the repository on."""
    missing = [path for path in _OURS.findall(page.read_text(encoding="utf-8")) if not (ROOT / path).exists()]
    assert not missing, missing


def _defined(file: Path) -> set[str]:
    """The functions and classes of a module, and the methods of those as ``Class.method``."""
    found = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            methods = (item for item in node.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef))
            found |= {f"{node.name}.{method.name}" for method in methods}
    return found


def test_the_walks_name_what_there_is() -> None:
    """Every step of a walk is a file with functions, and the file defines each of them."""
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
