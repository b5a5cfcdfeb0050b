"""
The container images: OCI archives, made of Debian's packages and the wheels, without a registry.

There is no shell in them, and no package manager: Python, the libraries it needs, and the gateway.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import shutil
import tarfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import deb
import sbom
from checkout import Checkout, date_all, run
from roots import Root

HERE = Path(__file__).resolve().parent
RELEASE = "13"
PYTHON = "3.13"
PACKAGES = (
    "base-files",
    "ca-certificates",
    f"libpython{PYTHON}-stdlib",
    "libssl3t64",
    "libstdc++6",  # for Arrow
    f"python{PYTHON}-minimal",
    "tzdata",
)

VARIANTS = {
    "": ("base", "oauth", "telemetry"),
    "-full": ("base", "oauth", "postgresql", "telemetry", "archive"),
}
"""The suffix of an image's name, and the locks of what is in it."""

USER = 10001
WRONG_SETTINGS = 2
"""The exit status of a gateway that cannot use its settings."""

NEEDLESS = (
    "boot home media mnt opt srv",  # folders
    "etc/apt etc/cron.* etc/debconf.conf etc/dpkg etc/init.d etc/logrotate.d etc/pam.d etc/perl etc/systemd",
    "usr/bin/[!p]* usr/bin/p[!y]* usr/games usr/include usr/libexec usr/sbin/*",
    "usr/lib/apt usr/lib/dpkg usr/lib/init usr/lib/systemd usr/lib/tmpfiles.d usr/lib/sysusers.d",
    "usr/lib/x86_64-linux-gnu/perl* usr/lib/x86_64-linux-gnu/gconv usr/lib/x86_64-linux-gnu/systemd",
    "usr/bin/pydoc* usr/bin/pygettext*",
    "dev/* usr/share/[!zc]* usr/share/z[!o]* usr/share/c[!a]* usr/local/* var/cache var/backups var/lib/[!d]*",
)
"""What is removed again: tools that only maintainer scripts need, and texts."""

HEALTHY = "import urllib.request as u; u.urlopen('http://127.0.0.1:8672/readyz', timeout=5)"


def build(checkout: Checkout, made: Iterable[Path], output: Path, scratch: Path) -> None:
    """Makes the images, with a bill of materials for each."""
    system = scratch / "image-debian"
    packages = debian(system, checkout)
    below = pack(system, checkout.epoch, scratch / "image-debian.tar.gz")
    for suffix, locks in VARIANTS.items():
        name = f"rewind-gateway{suffix}"
        tree = scratch / f"image{suffix}"
        deb.fill(tree, checkout, made, scratch / f"image{suffix}-wheels", [PYTHON], locks)
        libraries = tree / "opt/rewind/lib" / f"python{PYTHON}" / "site-packages"
        for folder in [*libraries.rglob("tests"), *libraries.glob("pyarrow/include")]:
            shutil.rmtree(folder)
        deb.place(HERE / "image" / "rewind.toml", tree / "etc/rewind/rewind.toml")
        deb.place(checkout.root / "LICENSE", tree / "usr/share/doc/rewind-gateway/copyright")
        bill = sbom.write(
            checkout, output / f"{name}-{checkout.version}.oci.cdx.json", locks, PYTHON, packages
        )
        deb.place(bill, tree / "usr/share/doc/rewind-gateway/sbom.cdx.json")
        compile_all(system, tree)
        (tree / "data").mkdir()
        above = pack(tree, checkout.epoch, scratch / f"image{suffix}.tar.gz")
        write(output / f"{name}-{checkout.version}.oci.tar", name, [below, above], checkout)


def debian(system: Path, checkout: Checkout) -> list[tuple[str, str]]:
    """Makes the root under the gateway; returns the names and versions of its packages."""
    Root.make(system, RELEASE, *PACKAGES, variant="extract", keep_packages=True)
    packages, status = [], []
    for archive in sorted((system / "var/cache/apt/archives").glob("*.deb")):
        text = run("dpkg-deb", "--field", archive).strip()
        fields = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line and line[0] != " ")
        packages.append((fields["Package"], fields["Version"]))
        status.append(text.replace("\n", "\nStatus: install ok installed\n", 1) + "\n")
    bundle = "".join(
        path.read_text() for path in sorted((system / "usr/share/ca-certificates").rglob("*.crt"))
    )
    for pattern in " ".join(NEEDLESS).split():
        for path in system.glob(pattern):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    for name in ("usr/share/ca-certificates", "usr/share/doc"):
        shutil.rmtree(system / name, ignore_errors=True)
    library = system / "usr/lib" / f"python{PYTHON}"
    for name in ("ensurepip", "idlelib", "lib2to3", "pydoc_data", "test", "tkinter", "turtledemo"):
        shutil.rmtree(library / name, ignore_errors=True)
    (system / "usr/bin/python3").symlink_to(f"python{PYTHON}")
    files = {
        "etc/passwd": f"root:x:0:0::/root:/nonexistent\nrewind:x:{USER}:{USER}::/data:/nonexistent\n",
        "etc/group": f"root:x:0:\nrewind:x:{USER}:\n",
        "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
        "etc/ssl/certs/ca-certificates.crt": bundle,
        "var/lib/dpkg/status": "\n".join(status),
    }
    for name, content in files.items():
        (system / name).parent.mkdir(parents=True, exist_ok=True)
        (system / name).write_text(content)
    compile_all(system, system)
    return packages


def compile_all(system: Path, tree: Path) -> None:
    """Compiles the libraries of a tree, with the Python of the system. The result does not depend on file times."""
    options = ["-I", "-m", "compileall", "-q", "-f", "-j", "1", "--invalidation-mode", "unchecked-hash"]
    python = f"/usr/bin/python{PYTHON}"
    if tree == system:
        Root(system).run(python, *options, f"/usr/lib/python{PYTHON}")
        return
    target = system / "mnt"
    target.mkdir()
    mount = f'mount --bind "{tree}" "{target}" && exec "$@"'
    command = Root(system).command(python, *options, "-s", "/mnt", "-p", "/", "/mnt/opt/rewind/lib")
    run("unshare", "--mount", "--propagation", "private", "sh", "-c", mount, "sh", *command)
    target.rmdir()


@dataclass(frozen=True)
class Layer:
    """A layer of an image, packed in a file."""

    file: Path
    digest: str
    """SHA-256 of the file, in hexadecimal digits."""
    unpacked: str
    """Digest of the tar in it."""


class Digested(io.RawIOBase):
    """Writes to a file, and makes the digest of what is written."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._hash = hashlib.sha256()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._hash.update(data)
        return self._file.write(data)

    def digest(self) -> str:
        """SHA-256 of what was written so far, in hexadecimal digits."""
        return self._hash.hexdigest()


def pack(tree: Path, epoch: int, file: Path) -> Layer:
    """Packs the files of a tree. All have the same date and belong to root, except the data folder: the gateway's."""
    date_all(tree, epoch)
    with file.open("wb") as opened:
        packed = Digested(opened)
        with gzip.GzipFile("", "wb", 6, packed, mtime=0) as compressed:
            unpacked = Digested(compressed)
            with tarfile.open(fileobj=unpacked, mode="w|", format=tarfile.PAX_FORMAT) as archive:
                for path in sorted(tree.rglob("*")):
                    archive.add(path, str(path.relative_to(tree)), recursive=False, filter=_owned)
    return Layer(file, packed.digest(), unpacked.digest())


def _owned(member: tarfile.TarInfo) -> tarfile.TarInfo:
    is_data = member.name == "data"
    member.uid = member.gid = USER if is_data else 0
    member.uname = member.gname = ""
    member.mode = 0o700 if is_data else 0o1777 if member.name == "tmp" else member.mode
    return member


def read(layout: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """An unpacked image's entry in the index, and its configuration."""
    [entry] = json.loads((layout / "index.json").read_text())["manifests"]
    manifest = json.loads((layout / _path(entry)).read_text())
    return entry, json.loads((layout / _path(manifest["config"])).read_text())


def _path(described: dict[str, Any]) -> str:
    return f"blobs/{described['digest'].replace(':', '/')}"


def write(file: Path, name: str, layers: Sequence[Layer], checkout: Checkout) -> None:
    """Writes an OCI archive of these layers (OCI Image Format 1.1: layout, index, manifest, configuration)."""
    created = datetime.fromtimestamp(checkout.epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    files: dict[str, bytes | Path] = {}

    def blob(kind: str, content: bytes | Path, digest: str) -> dict[str, Any]:
        files[f"blobs/sha256/{digest}"] = content
        size = len(content) if isinstance(content, bytes) else content.stat().st_size
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": f"sha256:{digest}", "size": size}

    def document(kind: str, content: Any) -> dict[str, Any]:
        encoded = _encoded(content)
        return blob(kind, encoded, hashlib.sha256(encoded).hexdigest())

    configuration = {
        "architecture": "amd64",
        "os": "linux",
        "created": created,
        "config": {
            "User": f"{USER}:{USER}",
            "Env": ["PATH=/usr/bin", "PYTHONDONTWRITEBYTECODE=1", "LANG=C.UTF-8"],
            "Entrypoint": ["/usr/bin/rewind"],
            "Cmd": ["serve", "--config", "/etc/rewind/rewind.toml"],
            "ExposedPorts": {"5672/tcp": {}, "8672/tcp": {}},
            "Volumes": {"/data": {}},
            "WorkingDir": "/data",
            "StopSignal": "SIGTERM",
            # Docker's own key, which its engine also reads in this format; podman ignores it.
            "Healthcheck": {
                "Test": ["CMD", "/opt/rewind/bin/python", "-I", "-c", HEALTHY],
                "Interval": 30_000_000_000,
                "Timeout": 10_000_000_000,
                "StartPeriod": 30_000_000_000,
                "Retries": 3,
            },
            "Labels": {
                "org.opencontainers.image.title": "Rewind",
                "org.opencontainers.image.version": checkout.debian_version,
                "org.opencontainers.image.revision": checkout.git("rev-parse", "HEAD"),
                "org.opencontainers.image.licenses": "Apache-2.0",
            },
        },
        "rootfs": {
            "type": "layers",
            "diff_ids": [f"sha256:{layer.unpacked}" for layer in layers],
        },
        "history": [{"created": created, "created_by": text} for text in ("Debian and Python", "Rewind")],
    }
    manifest: dict[str, Any] = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": document("config.v1+json", configuration),
        "layers": [blob("layer.v1.tar+gzip", layer.file, layer.digest) for layer in layers],
    }
    entry = document("manifest.v1+json", manifest) | {
        "annotations": {
            "org.opencontainers.image.ref.name": checkout.version,
            "io.containerd.image.name": f"{name}:{checkout.version}",
        },
        "platform": {"architecture": "amd64", "os": "linux"},
    }
    index = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [entry]}
    # What `docker load` and `podman load` read of an archive, in addition to the OCI layout.
    loaded = {
        "Config": _path(manifest["config"]),
        "RepoTags": [f"{name}:{checkout.version}"],
        "Layers": [_path(layer) for layer in manifest["layers"]],
    }
    files = {
        "oci-layout": _encoded({"imageLayoutVersion": "1.0.0"}),
        "index.json": _encoded(index),
        "manifest.json": _encoded([loaded]),
        **dict(sorted(files.items())),
    }
    with tarfile.open(file, "w", format=tarfile.PAX_FORMAT) as archive:
        for path, content in files.items():
            member = tarfile.TarInfo(path)
            member.mtime, member.mode = checkout.epoch, 0o644
            with io.BytesIO(content) if isinstance(content, bytes) else content.open("rb") as opened:
                member.size = opened.seek(0, io.SEEK_END)
                opened.seek(0)
                archive.addfile(member, opened)


def _encoded(content: Any) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
