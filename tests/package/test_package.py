"""The result of ``./run package`` at a small size: compiled with this machine's tools, and checked in its folder."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import distribution
from pathlib import Path

import pytest

from tests.system.gateway_process import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="Debian's packages are made with dpkg-deb"),
]

ENGINE = "python-qpid-proton"


def engine_wheel(folder: Path) -> Path:
    """A wheel of the engine from its installed files: compiling it would take a minute."""
    installed = distribution(ENGINE)
    wheel = folder / f"python_qpid_proton-{installed.version}-cp311-abi3-linux_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for file in installed.files or ():
            if file.suffix != ".pyc" and file.name not in ("INSTALLER", "REQUESTED", "direct_url.json"):
                content = file.read_binary()
                if file.name == "WHEEL":
                    content = re.sub(rb"(?m)^Tag: .*$", b"Tag: cp311-abi3-linux_x86_64", content)
                archive.writestr(zipfile.ZipInfo(str(file)), content)
    return wheel


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """
    Two folders of packages, built from one commit at the same time, as much of it is waiting for downloads. The second
    lacks the Debian package, which takes longest; ``./run package --test`` builds that twice and compares it.
    """
    folder = tmp_path_factory.mktemp("packages")
    command = [sys.executable, ".package", "--here", "--engine", engine_wheel(folder)]
    outputs = {folder / "first": ("deb", "sbom"), folder / "second": ("sbom",)}
    builds = [
        subprocess.Popen(
            [*command, "--output", output, "--only", *kinds], cwd=ROOT, stderr=subprocess.PIPE, text=True
        )
        for output, kinds in outputs.items()
    ]
    said = [build.communicate()[1] for build in builds]
    assert [build.returncode for build in builds] == [0, 0], said
    first, second = outputs
    yield first, second
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def packages(both: tuple[Path, Path]) -> Path:
    """The folder of packages."""
    return both[0]


@pytest.fixture(scope="module")
def tree(packages: Path) -> Path:
    """The Debian package, unpacked."""
    [package] = packages.glob("*.deb")
    tree = packages.parent / "tree"
    subprocess.run(["dpkg-deb", "--raw-extract", package, tree], check=True)
    return tree


def test_the_same_commit_gives_the_same_bytes(both: tuple[Path, Path]) -> None:
    """Wheels, source distribution and bill of materials have the same bytes in both folders."""
    first, second = (set((folder / "SHA256SUMS").read_text().splitlines()) for folder in both)
    assert len(second) == 4
    assert second < first


def test_the_sums_are_those_of_all_files(packages: Path) -> None:
    said = dict(reversed(line.split("  ")) for line in (packages / "SHA256SUMS").read_text().splitlines())
    assert said == {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in packages.iterdir()
        if path.name != "SHA256SUMS"
    }


def test_one_wheel_is_for_every_python(packages: Path) -> None:
    """
    The wheel is for every Python and every Linux with a C library of 2014 or later: its library needs nothing else.
    """
    names = [path.name for path in packages.glob("rewind_gateway-*.whl")]
    assert [name.split("-", 2)[2] for name in names] == ["cp311-abi3-manylinux_2_17_x86_64.whl"]


def test_the_source_distribution_has_what_a_wheel_is_built_of(packages: Path) -> None:
    [archive] = packages.glob("rewind_gateway-*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    sources = {"amqp_ext/message/_fronts.c", "gateway/amqp/engine/_transfers.c", "gateway/core/_id_set.c"}
    assert {"pyproject.toml", ".build/extension.py", "LICENSE"} | sources <= names


def test_the_bill_of_materials_names_all_that_is_installed_and_the_consoles_libraries(packages: Path) -> None:
    [file] = packages.glob("*.cdx.json")
    bill = json.loads(file.read_text())
    assert bill["bomFormat"] == "CycloneDX"
    assert bill["metadata"]["component"]["name"] == "rewind-gateway"
    found = {component["name"]: component["purl"] for component in bill["components"]}
    lock = (ROOT / ".locks" / "base.txt").read_text()
    assert found.keys() > set(re.findall(r"^([\w.-]+)==", lock, re.MULTILINE)) | {
        "psycopg",
        "deltalake",
        "preact",
    }
    assert found["preact"].startswith("pkg:npm/preact@")


# ------------------------------------------------------------------------------------------- the Debian package


def test_dpkg_knows_what_it_needs(tree: Path) -> None:
    control = (tree / "DEBIAN" / "control").read_text()
    assert "@" not in control.replace("rewind@localhost", "")
    assert (tree / "DEBIAN" / "conffiles").read_text() == "/etc/rewind/rewind.toml\n"
    for line in (tree / "DEBIAN" / "md5sums").read_text().splitlines():
        checksum, _, name = line.partition("  ")
        assert hashlib.md5((tree / name).read_bytes()).hexdigest() == checksum
    assert not list(tree.rglob("*.pyc"))


def test_nothing_says_where_it_was_built(tree: Path) -> None:
    """
    Another clone gives the same bytes: no RECORD lists a command, whose first line would name the builder's Python.
    """
    records = list(tree.glob("opt/rewind/lib/*/site-packages/*.dist-info/RECORD"))
    assert len(records) > 20
    assert [str(record) for record in records if "/bin/" in record.read_text()] == []


@pytest.mark.parametrize("script", ["preinst", "postinst", "prerm", "postrm"])
def test_maintainer_scripts_are_shell(tree: Path, script: str) -> None:
    checked = subprocess.run(["sh", "-n", tree / "DEBIAN" / script], capture_output=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, b"")


def test_an_older_version_is_refused_where_there_are_data(tree: Path, tmp_path: Path) -> None:
    """Without data there is nothing that the older version could not read."""
    script = (tree / "DEBIAN" / "preinst").read_text().replace("/var/lib/rewind", str(tmp_path))
    command = ["sh", "-c", script, "preinst", "upgrade"]

    def tried(version: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*command, version], capture_output=True, text=True, check=False)

    assert tried("999").returncode == 0
    (tmp_path / "default.db").touch()
    assert tried("0.0.1").returncode == 0
    refused = tried("999")
    assert refused.returncode == 1
    assert "is older than 999" in refused.stderr


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd says how exposed a unit is")
def test_the_unit_is_hardened(tree: Path) -> None:
    analysed = subprocess.run(
        [
            "systemd-analyze",
            "security",
            "--offline=true",
            "--threshold=20",
            tree / "usr/lib/systemd/system/rewind.service",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert analysed.returncode == 0, analysed.stdout[-200:] + analysed.stderr


def test_manual_and_completions_are_those_of_the_command(tree: Path) -> None:
    share = tree / "usr" / "share"
    page = subprocess.run(
        ["gzip", "-dc", share / "man/man1/rewind.1.gz"], capture_output=True, text=True, check=True
    ).stdout
    assert {".SS rewind serve", ".SS rewind replay start ENDPOINT"} <= set(page.splitlines())
    for name in (
        "bash-completion/completions/rewind",
        "zsh/vendor-completions/_rewind",
        "fish/vendor_completions.d/rewind.fish",
    ):
        assert "_REWIND_COMPLETE=" in (share / name).read_text()


# The system's Python, which the package's Python links to.
PYTHON = Path("/usr/bin/python3").resolve().name.removeprefix("python")


@contextmanager
def served(tree: Path, folder: Path) -> Iterator[tuple[list[str], dict[str, str]]]:
    """A gateway from the package: its command and its environment."""
    rewind = [str(tree / "opt/rewind/bin/python"), "-I", str(tree / "usr/bin/rewind")]
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "REWIND"))
    }
    settings = folder / "rewind.toml"
    text = (tree / "etc/rewind/rewind.toml").read_text().replace("/var/lib/rewind", str(folder / "data"))
    settings.write_text(re.sub(r"(?m)^port = \d+$", "port = 0", text))
    with subprocess.Popen(
        [*rewind, "serve", "--config", settings], stdout=subprocess.PIPE, env=environment, text=True
    ) as gateway:
        try:
            assert gateway.stdout is not None
            ready = json.loads(gateway.stdout.readline())
            yield rewind, environment | {"REWIND_URL": ready["amqp"][0], "REWIND_ADMIN": ready["admin"]}
        finally:
            gateway.terminate()
    assert gateway.returncode == 0


@pytest.mark.skipif(PYTHON not in ("3.11", "3.13"), reason="the package is for the Python of Debian 12 or 13")
def test_what_is_unpacked_serves(tree: Path, tmp_path: Path) -> None:
    """The unpacked package serves with its own settings, and only with the system's Python."""
    with served(tree, tmp_path) as (rewind, environment):

        def does(*arguments: str, text: str = "") -> str:
            return subprocess.run(
                [*rewind, *arguments], env=environment, input=text, capture_output=True, text=True, check=True
            ).stdout

        does("send", "orders", text="first\n")
        assert "first" in does("tail", "orders", "--count", "1")
        assert '"wireLoops": "native"' in does("status", "--all", "--json")
