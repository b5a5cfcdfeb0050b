"""
Fetches the libraries of the console, which are part of this repository: users build nothing, and a browser loads
nothing from elsewhere.

``gateway/admin/console/static/vendor/vendored.json`` says which files of which packages, in which versions, with the
hash of each package as npm publishes it (``integrity``) and of each file as it is stored here (``sha256``).
``tests/gateway/admin/console/test_pages.py`` compares the files with it.

``python .build/vendor.py`` makes the files again from these versions. ``--newest`` takes the newest ones, and writes
their numbers and hashes to ``vendored.json``. It needs npm, and uses npm's own configuration.
"""

import argparse
import base64
import hashlib
import io
import json
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent.parent / "gateway" / "admin" / "console" / "static" / "vendor"
LIST = FOLDER / "vendored.json"

IMPORTED = re.compile(rb'(\b(?:from|import)\s*)(["\'])([^"\'./][^"\']*)\2')
"""An import by a package's name, which no browser knows without an import map."""

SOURCE_MAP = re.compile(rb"\n?//# sourceMappingURL=\S+\s*$")
"""The comment that names a source map, which is not fetched."""


def packed(name: str, version: str) -> bytes:
    """A package as npm publishes it, a ``.tgz``."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["npm", "pack", "--silent", "--pack-destination", folder, f"{name}@{version}"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        [found] = Path(folder).glob("*.tgz")
        return found.read_bytes()


def integrity(package: bytes) -> str:
    """The hash of a package, as npm's locks write it."""
    return "sha512-" + base64.b64encode(hashlib.sha512(package).digest()).decode()


def members(package: bytes) -> dict[str, bytes]:
    """The files of a package by their paths in it."""
    with tarfile.open(fileobj=io.BytesIO(package)) as archive:
        return {
            member.name.partition("/")[2]: found.read()
            for member in archive
            if (found := archive.extractfile(member)) is not None
        }


def adapted(text: bytes, file: dict[str, Any], places: dict[str, str]) -> bytes:
    """A file as a browser loads it: its imports name the files next to it, and a script's one variable is exported."""

    def relative(found: re.Match[bytes]) -> bytes:
        return found[1] + found[2] + f"./{places[found[3].decode()]}".encode() + found[2]

    if not file["path"].endswith(".js"):
        return text
    text = SOURCE_MAP.sub(b"\n", text)
    if exported := file.get("exports"):
        return text.rstrip() + f"\nexport default {exported};\n".encode()
    return IMPORTED.sub(relative, text)


def main() -> None:
    """Writes the files, and their list."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--newest", action="store_true", help="take the newest versions")
    newest = parser.parse_args().newest
    packages = json.loads(LIST.read_text())
    places = {file["module"]: file["path"] for one in packages for file in one["files"] if "module" in file}
    for one in packages:
        package = packed(one["package"], "latest" if newest else one["version"])
        if newest:
            one["integrity"] = integrity(package)
        elif one["integrity"] != integrity(package):
            sys.exit(
                f"{one['package']} {one['version']} is not what it was: its hash is {integrity(package)}"
            )
        found = members(package)
        described = json.loads(found["package.json"])
        one["version"], one["licence"] = described["version"], described["license"]
        for file in one["files"]:
            text = adapted(found[file["from"]], file, places)
            (FOLDER / file["path"]).write_bytes(text)
            file["sha256"] = hashlib.sha256(text).hexdigest()
    LIST.write_text(json.dumps(packages, indent=2) + "\n")


if __name__ == "__main__":
    main()
