"""The console's libraries are the files that were fetched: none was edited, added or lost, each with its licence."""

from __future__ import annotations

import hashlib
import json
import re

from gateway.admin.console.routes import STATIC

VENDOR = STATIC / "vendor"
PACKAGES = json.loads((VENDOR / "vendored.json").read_text())
LICENCES = {"MIT", "Apache-2.0", "BSD-3-Clause", "ISC", "0BSD"}
"""That ask for no more than that they come along."""


def test_each_file_is_as_it_was_fetched() -> None:
    """By its hash; and none is there that is not listed."""
    listed = {file["path"]: file["sha256"] for one in PACKAGES for file in one["files"]}
    found = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in VENDOR.iterdir()
        if path.name != "vendored.json"
    }
    assert found == listed
    assert listed


def test_each_library_says_what_it_is() -> None:
    """Its version, the hash of its package, and its licence, whose text lies beside it."""
    for one in PACKAGES:
        assert re.fullmatch(r"\d+\.\d+\.\d+", one["version"]), one["package"]
        assert re.fullmatch(r"sha512-[A-Za-z0-9+/]{86}==", one["integrity"]), one["package"]
        assert one["licence"] in LICENCES, one["package"]
        assert any(file["path"].startswith("LICENSE-") for file in one["files"]), one["package"]
