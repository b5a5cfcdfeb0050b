"""
What ``.build/extension.py`` makes of the code in C: wheels with and without the extension, and a tree that has it.
"""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
PACKAGES = ("amqp_ext", "gateway", "spark_bridge", "store")
HOOK = Path(".build/extension.py")
SOURCES = (
    Path("amqp_ext/message/_fronts.c"),
    Path("gateway/amqp/engine/_transfers.c"),
    Path("gateway/core/_id_set.c"),
)
BUILT = {source.with_suffix(".abi3.so") for source in SOURCES}

NO_COMPILER = {"CC": "/nowhere/cc"}


def run(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments in an environment that requests no extension and no sanitizer."""
    kept = {name: value for name, value in os.environ.items() if name not in ("CFLAGS", "REWIND_NATIVE")}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=kept | environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A private copy of the wheel's sources: a build writes into its tree."""
    for name in ("pyproject.toml", "README.md", "LICENSE", ".gitignore", str(HOOK)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    for package in PACKAGES:
        shutil.copytree(
            ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__", "*.so")
        )
    return tmp_path


def build_wheel(tree: Path, **environment: str) -> tuple[str, set[Path]]:
    """Build a wheel from a tree; returns its tag and the files in its packages."""
    built = run("-m", "hatchling", "build", "-t", "wheel", "-d", "wheels", cwd=tree, **environment)
    assert built.returncode == 0, built.stderr
    [wheel] = (tree / "wheels").glob("*.whl")
    names = map(Path, zipfile.ZipFile(wheel).namelist())
    return wheel.stem.split("-", 2)[2], {name for name in names if name.parts[0] in PACKAGES}


def files_of(tree: Path) -> set[Path]:
    """The files of the packages in a tree, without the C sources."""
    found = (path for package in PACKAGES for path in (tree / package).rglob("*") if path.is_file())
    return {path.relative_to(tree) for path in found if path.suffix != ".c"}


def test_wheel_has_all_there_is_in_the_packages_and_the_extension(tree: Path) -> None:
    """The wheel is for one platform, and for every Python from the oldest supported one on."""
    tag, names = build_wheel(tree)
    assert names == files_of(tree) | BUILT
    assert tag.startswith("cp311-abi3-")


def test_wheel_is_made_without_a_compiler(tree: Path) -> None:
    """The wheel lacks only the extension, and so fits every Python and every platform."""
    tag, names = build_wheel(tree, **NO_COMPILER)
    assert names == files_of(tree)
    assert tag == "py3-none-any"


def test_extension_may_be_left_out(tree: Path) -> None:
    """Without the extension the wheel fits every Python."""
    tag, names = build_wheel(tree, REWIND_NATIVE="0")
    assert not BUILT & names
    assert tag == "py3-none-any"


def test_build_that_must_have_the_extension_fails_without_a_compiler(tree: Path) -> None:
    """Otherwise the suite would pass although nothing was compiled."""
    build = run(
        "-m", "hatchling", "build", "-t", "wheel", "-d", "wheels", cwd=tree, REWIND_NATIVE="1", **NO_COMPILER
    )
    assert build.returncode != 0
    assert not list((tree / "wheels").glob("*.whl"))


def test_extension_is_compiled_without_a_warning_and_gone_where_it_cannot_be(tree: Path) -> None:
    """
    The hook asks for -Wall and -Wextra. After a failed compilation the old extension is gone: a program with a changed
    interface would load it.
    """
    compiled = run(str(HOOK), cwd=tree, CFLAGS="-Werror")
    assert compiled.returncode == 0, compiled.stderr
    assert all((tree / built).exists() for built in BUILT)
    failed = run(str(HOOK), cwd=tree, **NO_COMPILER)
    assert failed.returncode != 0
    assert all(str(source) in failed.stderr for source in SOURCES)
    assert not any((tree / built).exists() for built in BUILT)
    assert list((tree / "build").iterdir()) == []
