"""
The wheel and the source distribution; the wheel of the one library that comes as C source; and folders with all that
wheels install, for each Python that the packages support.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from packaging.requirements import Requirement

from checkout import Checkout, date_all, run
from roots import OLDEST, Root

ENGINE = "python-qpid-proton"
"""It has no wheels on the package index: it is compiled along with the gateway's own extension."""

OLDEST_PYTHON = "3.11"
NEWEST_GLIBC = 36
"""Debian 12 has glibc 2.36."""

LEFT_OUT = {"pip"}
"""Requirements of libraries that install more of themselves with it; nobody does that in a package."""

COMPILE_WITH = ("gcc", "libc6-dev", "libssl-dev", "pkg-config", "python3-dev", "python3-venv")


def locked(root: Path, locks: Iterable[str], python: str) -> Mapping[str, str]:
    """
    The requirements of these locks for one Python, such as ``3.13``: by name, each with its version and hashes.

    All locks come from one resolution, so two of them never name different versions of a library.
    """
    environment = {"python_version": python, "python_full_version": f"{python}.0"}
    found = {}
    for lock in locks:
        text = re.sub(r"^ *#.*\n", "", (root / ".locks" / f"{lock}.txt").read_text(), flags=re.MULTILINE)
        for entry in re.split(r"\n(?=\w)", text.strip()):
            requirement, _, hashes = entry.replace("\\\n", " ").partition("--hash")
            parsed = Requirement(requirement)
            if parsed.marker is None or parsed.marker.evaluate(environment):
                found[parsed.name] = f"{parsed.name}{parsed.specifier} --hash{hashes}"
    return found


def download(folder: Path, requirements: Iterable[str], *options: str) -> None:
    """Downloads the files of locked requirements into a folder. Every file is checked against its hash."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "requirements.txt"
    file.write_text("".join(f"{requirement}\n" for requirement in requirements))
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet")
    run(*pip, "--no-deps", "--require-hashes", "--dest", folder, *options, "--requirement", file)
    file.unlink()


def for_python(python: str) -> list[str]:
    """Options that make pip choose files for this Python on Debian (amd64), whatever Python it runs on."""
    platforms = [f"manylinux_2_{minor}_x86_64" for minor in range(NEWEST_GLIBC, 4, -1)]
    platforms += ["manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64", "linux_x86_64"]
    return [
        *("--only-binary=:all:", "--implementation=cp", f"--python-version={python}"),
        *(f"--platform={platform}" for platform in platforms),
    ]


def build(
    checkout: Checkout, output: Path, scratch: Path, *, here: bool, engine: Path | None = None
) -> list[Path]:
    """
    Makes the wheel, the source distribution and the engine's wheel; returns their paths.

    Args:
        here: Compile with this machine's tools. Otherwise compile in a root of the oldest Debian that has a package, so
            that the result runs there, too, and is the same wherever it is made.
        engine: The engine's wheel, if it was compiled already: that takes a minute.
    """
    system = scratch / "compiler"
    if not here:
        Root.make(system, OLDEST, *COMPILE_WITH)
    work = system / "build"
    work.mkdir(parents=True)
    checkout.export(work / "source")
    (work / "wheels").mkdir()
    date_all(work / "source", checkout.epoch)

    place = work if here else Path("/build")
    environment = {
        "CFLAGS": f"-g0 -ffile-prefix-map={place}=.",
        "LDFLAGS": "-s",
        "PYTHONDONTWRITEBYTECODE": "1",
        "REWIND_NATIVE": "1",
        "SOURCE_DATE_EPOCH": str(checkout.epoch),
        "TZ": "UTC",
    }

    def do(*command: str) -> None:
        if here:
            run(*command, **environment)
        else:
            Root(system).run(*command, **environment)

    python = sys.executable
    if not here:
        python = "/build/tools/bin/python"
        tools = locked(checkout.root, ["build"], OLDEST_PYTHON)
        download(work / "tools-wheels", tools.values(), *for_python(OLDEST_PYTHON))
        do("python3", "-m", "venv", "/build/tools")
        do(
            python,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--upgrade",  # the venv has a setuptools of its own
            "--no-index",
            "--find-links=/build/tools-wheels",
            *tools,
        )
    do(
        *("env", f"--chdir={place}/source"),
        *(python, "-m", "hatchling", "build", "-t", "sdist", "-t", "wheel", "-d", f"{place}/wheels"),
    )
    if engine is None:
        source = engine_source(checkout, work / "engine")
        do(
            *(python, "-m", "pip", "wheel", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"),
            *("--config-settings=--build-option=--py-limited-api=cp311", f"--wheel-dir={place}/wheels"),
            f"{place}/engine/{source.name}",
        )
    else:
        shutil.copy(engine, work / "wheels")
    made = []
    for path in sorted((work / "wheels").iterdir()):
        made.append(output / path.name)
        made[-1].write_bytes(path.read_bytes())
    return made


def engine_source(checkout: Checkout, folder: Path) -> Path:
    """Unpacks the engine's source into a folder; returns its path."""
    wanted = locked(checkout.root, ["base"], OLDEST_PYTHON)[ENGINE]
    download(folder, [wanted], "--no-binary=:all:", "--no-build-isolation")
    [archive] = folder.iterdir()
    with tarfile.open(archive) as opened:
        opened.extractall(folder, filter="data")
    return folder / archive.name.removesuffix(".tar.gz")


def site_packages(
    target: Path, checkout: Checkout, wheels: Iterable[Path], locks: Iterable[str], python: str, scratch: Path
) -> None:
    """
    Makes a folder of all libraries of a gateway, and the gateway itself, for one Python.

    Args:
        wheels: The wheels that ``build`` made.
        locks: The names of the locks that list what the gateway needs.
    """
    requirements = dict(locked(checkout.root, locks, python))
    names = [entry.partition(" ")[0] for name, entry in requirements.items() if name not in LEFT_OUT]
    for name in {ENGINE, *LEFT_OUT} & requirements.keys():
        del requirements[name]
    house = scratch / f"wheels-{python}"
    download(house, requirements.values(), *for_python(python))
    for wheel in wheels:
        if wheel.suffix == ".whl" and not (house / wheel.name).exists():
            os.link(wheel, house / wheel.name)
    run(
        *(sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-index"),
        *(f"--find-links={house}", f"--target={target}", "--no-deps", "--no-compile", "--no-warn-conflicts"),
        *for_python(python),
        *(*names, f"rewind-gateway=={checkout.version}"),
    )
    # Commands begin with the path of the Python that installed them, so their sums depend on it. The packages have a
    # command of their own.
    shutil.rmtree(target / "bin")
    for record in target.glob("*.dist-info/RECORD"):
        lines = record.read_text().splitlines(keepends=True)
        record.write_text("".join(line for line in lines if not line.startswith("../../bin/")))
