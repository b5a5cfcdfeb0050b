"""The container images at a small size: an archive of a few files follows the OCI formats."""

from __future__ import annotations

import gzip
import hashlib
import importlib
import io
import json
import os
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.system.gateway_process import ROOT

EPOCH = 1_700_000_000


class Commit:
    """What an image says about the checkout that it is made from."""

    version, debian_version, epoch = "1.2.3", "1.2.3", EPOCH

    def git(self, *_: str) -> str:
        return "c0ffee"


@pytest.fixture
def image() -> Iterator[ModuleType]:
    sys.path.insert(0, str(ROOT / ".package"))
    yield importlib.import_module("image")
    sys.path.remove(str(ROOT / ".package"))


def made(image: ModuleType, folder: Path) -> Path:
    """An archive with two layers of files that are written now."""
    layers = []
    for number, names in enumerate((("usr/bin/tool", "tmp/"), ("opt/library.py", "data/"))):
        tree = folder / str(number)
        for name in names:
            path = tree / name
            (path if name.endswith("/") else path.parent).mkdir(parents=True)
            if not name.endswith("/"):
                path.write_text(name)
                path.chmod(0o700 if "bin" in name else 0o600)
        layers.append(image.pack(tree, EPOCH, folder / f"{number}.tar.gz"))
    archive = folder / "image.oci.tar"
    image.write(archive, "rewind-gateway", layers, Commit())
    return archive


@pytest.fixture
def files(image: ModuleType, tmp_path: Path) -> dict[str, bytes]:
    """The files in an archive, by path."""
    with tarfile.open(made(image, tmp_path)) as archive:
        members = archive.getmembers()
        assert {(member.mtime, member.uid, member.mode) for member in members} == {(EPOCH, 0, 0o644)}
        return {member.name: archive.extractfile(member).read() for member in members}  # type: ignore[union-attr]


def test_every_blob_is_called_by_its_digest_and_described(files: dict[str, bytes]) -> None:
    """From the index to the layers, every blob has its digest as name and as descriptor (OCI Image Format 1.1)."""

    def blob(described: dict[str, Any]) -> bytes:
        content = files["blobs/" + described["digest"].replace(":", "/")]
        assert described["digest"] == f"sha256:{hashlib.sha256(content).hexdigest()}"
        assert described["size"] == len(content)
        return content

    assert json.loads(files["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    [entry] = json.loads(files["index.json"])["manifests"]
    manifest = json.loads(blob(entry))
    configuration = json.loads(blob(manifest["config"]))
    layers = [blob(layer) for layer in manifest["layers"]]
    unpacked = [f"sha256:{hashlib.sha256(gzip.decompress(layer)).hexdigest()}" for layer in layers]
    assert configuration["rootfs"]["diff_ids"] == unpacked
    assert len(files) == 3 + 2 + len(layers)


def test_docker_and_podman_load_it_by_name(files: dict[str, bytes]) -> None:
    [loaded] = json.loads(files["manifest.json"])
    assert loaded["RepoTags"] == ["rewind-gateway:1.2.3"]
    assert {loaded["Config"], *loaded["Layers"]} == {name for name in files if name.startswith("blobs/")} - {
        "blobs/" + json.loads(files["index.json"])["manifests"][0]["digest"].replace(":", "/")
    }


def test_files_are_roots_and_readable_and_the_data_folder_is_the_gateways(files: dict[str, bytes]) -> None:
    """File modes and owners do not depend on the umask under which the files were written."""
    [loaded] = json.loads(files["manifest.json"])
    found = {}
    for layer in loaded["Layers"]:
        with tarfile.open(fileobj=io.BytesIO(files[layer])) as opened:
            found |= {one.name: (one.uid, one.gid, one.mode, one.mtime) for one in opened.getmembers()}
    assert found == {
        "usr": (0, 0, 0o755, EPOCH),
        "usr/bin": (0, 0, 0o755, EPOCH),
        "usr/bin/tool": (0, 0, 0o755, EPOCH),
        "tmp": (0, 0, 0o1777, EPOCH),
        "opt": (0, 0, 0o755, EPOCH),
        "opt/library.py": (0, 0, 0o644, EPOCH),
        "data": (10001, 10001, 0o700, EPOCH),
    }


def test_the_same_tree_gives_the_same_bytes(image: ModuleType, tmp_path: Path) -> None:
    archives = []
    before = os.umask(0o022)
    for umask in (0o022, 0o077):
        os.umask(umask)
        folder = tmp_path / f"{umask}"
        folder.mkdir()
        archives.append(made(image, folder).read_bytes())
    os.umask(before)
    assert archives[0] == archives[1]
