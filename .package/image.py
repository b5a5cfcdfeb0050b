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
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

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
    f"python{PYTHON}-minimal",
    "tzdata",
)

VARIANTS = {"": ("base", "telemetry"), "-full": ("base", "telemetry", "postgresql", "archive")}
"""What an image is called behind its name, and the locks of what is in it."""

USER = 10001

NEEDLESS = (
    "boot home media mnt opt srv",  # folders
    "etc/apt etc/cron.* etc/debconf.conf etc/dpkg etc/init.d etc/logrotate.d etc/pam.d etc/perl etc/systemd",
    "usr/bin/[!p]* usr/bin/p[!y]* usr/games usr/include usr/libexec usr/sbin/*",
    "usr/lib/apt usr/lib/dpkg usr/lib/init usr/lib/systemd usr/lib/tmpfiles.d usr/lib/sysusers.d",
    "usr/lib/x86_64-linux-gnu/perl* usr/lib/x86_64-linux-gnu/gconv usr/lib/x86_64-linux-gnu/systemd",
    "usr/bin/pydoc* usr/bin/pygettext*",
    "dev/* usr/share/[!zc]* usr/share/z[!o]* usr/share/c[!a]* usr/local/* var/cache var/backups var/lib/[!d]*",
)
"""What is taken out again: tools that only maintainer scripts need, and texts."""

HEALTHY = "import urllib.request as u; u.urlopen('http://127.0.0.1:8672/readyz', timeout=5)"


def build(checkout: Checkout, made: Iterable[Path], output: Path, scratch: Path) -> None:
    """Makes the images, with a bill of materials for each."""
    system = scratch / "image-debian"
    packages = debian(system, checkout)
    layer = packed(system, checkout.epoch)
    for suffix, locks in VARIANTS.items():
        tree = scratch / f"image{suffix}"
        deb.fill(tree, checkout, made, scratch / f"image{suffix}-wheels", [PYTHON], locks)
        deb.place(HERE / "image" / "rewind.toml", tree / "etc/rewind/rewind.toml")
        deb.place(checkout.root / "LICENSE", tree / "usr/share/doc/rewind-gateway/copyright")
        name = f"rewind-gateway{suffix}-{checkout.version}"
        bill = sbom.write(checkout, output / f"{name}.oci.cdx.json", locks, PYTHON, packages)
        deb.place(bill, tree / "usr/share/doc/rewind-gateway/sbom.cdx.json")
        compile_all(system, tree)
        (tree / "data").mkdir()
        image = output / f"{name}.oci.tar"
        write(
            image,
            f"rewind-gateway{suffix}:{checkout.version}",
            [layer, packed(tree, checkout.epoch)],
            checkout,
        )


def debian(system: Path, checkout: Checkout) -> list[tuple[str, str]]:
    """Makes the root under the gateway; the names and versions of the packages it is made of."""
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
    """Compiles the libraries of a tree, with the Python of the system; their times do not matter to what is made."""
    place = "/" if tree == system else "/mnt"
    target = system / "mnt"
    options = ["-I", "-m", "compileall", "-q", "-f", "-j", "1", "--invalidation-mode", "unchecked-hash"]
    python = f"/usr/bin/python{PYTHON}"
    if tree == system:
        Root(system).run(python, *options, f"/usr/lib/python{PYTHON}")
        return
    target.mkdir()
    mount = f'mount --bind "{tree}" "{target}" && exec "$@"'
    command = Root(system).command(python, *options, "-s", place, "-p", "/", f"{place}/opt/rewind/lib")
    run("unshare", "--mount", "--propagation", "private", "sh", "-c", mount, "sh", *command)
    target.rmdir()


def packed(tree: Path, epoch: int) -> bytes:
    """A layer: the files of a tree, root's, of one date, but for the data folder, which is the gateway's."""
    date_all(tree, epoch)
    packed_tree = io.BytesIO()
    with tarfile.open(fileobj=packed_tree, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(tree.rglob("*")):
            member = archive.gettarinfo(path, str(path.relative_to(tree)))
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.mtime = epoch
            if member.name == "data":
                member.uid = member.gid = USER
                member.mode = 0o700
            if member.name == "tmp":
                member.mode = 0o1777
            if member.isreg():
                with path.open("rb") as file:
                    archive.addfile(member, file)
            else:
                archive.addfile(member)
    return packed_tree.getvalue()


def write(file: Path, name: str, layers: list[bytes], checkout: Checkout) -> None:
    """Writes an OCI archive of these layers (OCI Image Format 1.1: layout, index, manifest, configuration)."""
    created = datetime.fromtimestamp(checkout.epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    blobs: dict[str, bytes] = {}

    def blob(content: bytes, kind: str) -> dict[str, Any]:
        digest = hashlib.sha256(content).hexdigest()
        blobs[digest] = content
        return {
            "mediaType": f"application/vnd.oci.image.{kind}",
            "digest": f"sha256:{digest}",
            "size": len(content),
        }

    def document(content: Any) -> bytes:
        return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()

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
            # Docker's word, which its engine and podman read in this format, too.
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
            "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in layers],
        },
        "history": [{"created": created, "created_by": text} for text in ("Debian and Python", "Rewind")],
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": blob(document(configuration), "config.v1+json"),
        "layers": [blob(gzip.compress(layer, 6, mtime=0), "layer.v1.tar+gzip") for layer in layers],
    }
    entry = blob(document(manifest), "manifest.v1+json") | {
        "annotations": {
            "org.opencontainers.image.ref.name": name.partition(":")[2],
            "io.containerd.image.name": name,
        },
        "platform": {"architecture": "amd64", "os": "linux"},
    }
    index = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [entry]}
    files = {"oci-layout": document({"imageLayoutVersion": "1.0.0"}), "index.json": document(index)}
    files |= {f"blobs/sha256/{digest}": content for digest, content in sorted(blobs.items())}
    with tarfile.open(file, "w", format=tarfile.PAX_FORMAT) as archive:
        for path, content in files.items():
            member = tarfile.TarInfo(path)
            member.size, member.mtime, member.mode = len(content), checkout.epoch, 0o644
            archive.addfile(member, io.BytesIO(content))
