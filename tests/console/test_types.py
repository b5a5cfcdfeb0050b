"""The types that the console's scripts say in their comments hold, those of its libraries included."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

from gateway.admin.console.routes import STATIC
from tests.console.npm import FOLDER


def check(tree: Path, modules: Path) -> subprocess.CompletedProcess[str]:
    """What TypeScript says of the scripts in a folder `static`, where libraries are known by their types."""
    shutil.copy(FOLDER / "tsconfig.json", tree)
    shutil.copytree(FOLDER / "types", tree / "static" / "vendor")
    (tree / "node_modules").symlink_to(modules)
    return subprocess.run(
        ["node", str(modules / "typescript" / "bin" / "tsc"), "--project", str(tree), "--pretty", "false"],
        cwd=tree,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_scripts_have_the_types_that_they_say(tmp_path: Path, npm_modules: Path) -> None:
    """Strictly: what may be null is looked at before it is used, and nothing is just anything by silence."""
    shutil.copytree(STATIC, tmp_path / "static", ignore=shutil.ignore_patterns("vendor"))
    checked = check(tmp_path, npm_modules)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_a_wrong_type_is_found(tmp_path: Path, npm_modules: Path) -> None:
    """In a script, and against a library."""
    (tmp_path / "static").mkdir()
    script = 'import { signal } from "./vendor/signals.js";\n/** @type {string} */\nexport const x = signal(1).value;\n'
    (tmp_path / "static" / "x.js").write_text(script)
    checked = check(tmp_path, npm_modules)
    assert checked.returncode != 0
    assert "x.js(3,14): error TS2322" in checked.stdout


def test_the_types_are_of_the_versions_that_are_vendored(npm_modules: Path) -> None:
    """What the scripts are checked against is what a browser loads."""
    vendored = json.loads((STATIC / "vendor" / "vendored.json").read_text())
    for one in vendored:
        described = json.loads((npm_modules / one["package"] / "package.json").read_text())
        assert described["version"] == one["version"], one["package"]
