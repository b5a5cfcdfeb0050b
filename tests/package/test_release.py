"""``./run release``: its conditions on a commit, and its result."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.system.gateway_process import ROOT

CHANGES = "# Changelog\n\n## [Unreleased]\n\n- Something new.\n\n## [0.1.0] - 2026-01-01\n\n- All of it.\n"
BUILDER = "#!/bin/sh\nmkdir -p build/packages && echo sums >build/packages/SHA256SUMS\n"


class Project:
    """A small checkout whose ``./run package`` makes only checksums."""

    def __init__(self, root: Path) -> None:
        self.root = root
        shutil.copytree(ROOT / ".package", root / ".package", ignore=shutil.ignore_patterns("__pycache__"))
        self.write("pyproject.toml", '[project]\nname = "x"\nversion = "0.1.0"\n')
        self.write("CHANGELOG.md", CHANGES)
        self.write(".gitignore", "/build/\n__pycache__/\n")
        self.write("run", BUILDER)
        (root / "run").chmod(0o755)
        self.git("init", "--quiet")
        for key, value in (
            ("user.name", "Ann"),
            ("user.email", "ann@example.com"),
            ("commit.gpgsign", "false"),
        ):
            self.git("config", key, value)
        self.commit()

    def write(self, name: str, text: str) -> None:
        (self.root / name).write_text(text)

    def git(self, *arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], cwd=self.root, capture_output=True, text=True, check=True
        ).stdout.strip()

    def commit(self) -> None:
        """Commit everything; the suite counts as passed on the commit."""
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", "Change it")
        (self.root / "build").mkdir(exist_ok=True)
        self.write("build/green", self.git("rev-parse", "HEAD") + "\n")

    def release(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, ".package/release.py", *arguments]
        return subprocess.run(command, cwd=self.root, capture_output=True, text=True, check=False)

    @property
    def state(self) -> tuple[str, str, str]:
        """The state that a refused release must not change."""
        return self.git("rev-parse", "HEAD"), self.git("tag"), self.git("status", "--porcelain")


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def test_a_release_has_a_version_a_changelog_a_commit_and_a_tag(project: Project) -> None:
    """The version is written in one place; the unreleased changes get a heading with a date."""
    done = project.release("0.2.0")
    assert done.returncode == 0, done.stderr
    assert "not signed" in done.stderr
    assert project.git("rev-parse", "v0.2.0^{commit}") == project.git("rev-parse", "HEAD")
    assert project.git("log", "-1", "--format=%s") == "Release 0.2.0"
    assert tomllib.loads((project.root / "pyproject.toml").read_text())["project"]["version"] == "0.2.0"
    heads = [
        line for line in (project.root / "CHANGELOG.md").read_text().splitlines() if line.startswith("## ")
    ]
    assert heads[0] == "## [Unreleased]"
    assert heads[1].startswith("## [0.2.0] - 20")
    assert project.git("status", "--porcelain") == ""


@pytest.mark.parametrize(
    ("version", "file", "text", "reason"),
    [
        ("2", None, "", "is no version"),
        ("0.2.0", "build/green", "an earlier one\n", "suite has not passed"),
        ("0.2.0", "new.py", "", "commit first"),
    ],
)
def test_what_cannot_be_released_is_refused_and_nothing_is_changed(
    project: Project, version: str, file: str | None, text: str, reason: str
) -> None:
    if file is not None:
        project.write(file, text)
    before = project.state
    refused = project.release(version)
    assert (refused.returncode, project.state) == (1, before)
    assert reason in refused.stderr


def test_nothing_new_is_no_release(project: Project) -> None:
    project.write("CHANGELOG.md", CHANGES.replace("- Something new.\n", ""))
    project.commit()
    assert "nothing under [Unreleased]" in project.release("0.2.0").stderr


def test_a_version_is_released_once(project: Project) -> None:
    assert project.release("0.2.0").returncode == 0
    project.write("CHANGELOG.md", CHANGES)
    project.commit()
    assert "was released before" in project.release("0.2.0").stderr


def test_a_build_that_fails_takes_the_release_back(project: Project) -> None:
    """Commit and tag are removed, so that the next try starts afresh."""
    project.write("run", "#!/bin/sh\nexit 3\n")
    project.commit()
    before = project.state
    assert project.release("0.2.0").returncode == 1
    assert project.state == before


@pytest.mark.skipif(shutil.which("gpg") is None, reason="sums are signed with gpg")
def test_sums_are_signed_with_a_key(
    project: Project, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A missing key is reported before anything is done."""
    home = tmp_path_factory.mktemp("gpg")
    home.chmod(0o700)
    monkeypatch.setenv("GNUPGHOME", str(home))
    before = project.state
    assert project.release("0.2.0", "--key", "ann@example.com").returncode == 1
    assert project.state == before
    gpg = ["gpg", "--batch", "--quiet", "--pinentry-mode", "loopback", "--passphrase", ""]
    subprocess.run([*gpg, "--quick-generate-key", "ann@example.com", "ed25519", "sign"], check=True)
    assert project.release("0.2.0", "--key", "ann@example.com").returncode == 0
    sums = project.root / "build" / "packages" / "SHA256SUMS"
    subprocess.run(["gpg", "--batch", "--verify", f"{sums}.asc", sums], check=True)
    subprocess.run(["gpgconf", "--kill", "all"], check=True)
