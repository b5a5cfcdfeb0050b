"""
The Helm chart: the folder ``chart`` next to this module, with the dashboard and the rules that the gateway prints.

``python3 .package/chart.py`` fetches the tools that the tests of the chart and of the rules need.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CHART = Path(__file__).resolve().parent / "chart"
NAME = "rewind"


def fill(folder: Path) -> Path:
    """Makes the chart in a new folder, as Helm reads it; returns the folder."""
    sys.path.insert(0, str(ROOT))
    try:
        from gateway.admin.monitoring import dashboard, rules  # noqa: PLC0415 - of this checkout
    finally:
        sys.path.pop(0)
    shutil.copytree(CHART, folder)
    (folder / "files" / "dashboard.json").write_text(json.dumps(dashboard(), indent=1) + "\n")
    (folder / "files" / "rules.yaml").write_text(rules())
    return folder


def build(output: Path, scratch: Path, version: str, epoch: int) -> Path:
    """
    Packs the chart as ``helm package`` does, all files with the same date; returns the archive. The dashboard and the
    rules are also put next to it, for people without Kubernetes.
    """
    folder = fill(scratch / NAME)
    for name in ("dashboard.json", "rules.yaml"):
        shutil.copyfile(folder / "files" / name, output / f"{NAME}-{name}")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path in sorted(folder.rglob("*")):
            if not path.is_file():
                continue
            content = path.read_bytes()
            member = tarfile.TarInfo(f"{NAME}/{path.relative_to(folder)}")
            member.size, member.mtime, member.mode = len(content), epoch, 0o644
            archive.addfile(member, io.BytesIO(content))
    file = output / f"{NAME}-{version}.tgz"
    file.write_bytes(gzip.compress(packed.getvalue(), mtime=0))
    return file


# --- what its tests need ----------------------------------------------------------------------------------------------

TOOLS = ROOT / "build" / "tools"
"""Where the tests look for tools, in addition to the path."""

BUILT = {
    "helm": "helm.sh/helm/v3/cmd/helm@v3.19.5",
    "kubeconform": "github.com/yannh/kubeconform/cmd/kubeconform@v0.7.0",
}
"""Programs in Go, by the modules that they are built from."""

SCHEMAS = "kubernetes-validate==1.37.0"
"""The schemas of Kubernetes' objects, as files, for each of its versions."""

VERSIONS = ("1.25.0", "1.31.0", "1.36.0")
"""Versions of Kubernetes: an old one, and newer ones."""

PROMTOOL = "prometheus"
"""Debian's package that has promtool."""


def fetch_tools(folder: Path = TOOLS) -> None:
    """
    Fetches Helm, kubeconform, Kubernetes' schemas and promtool, where missing; installs nothing on the system.

    Raises:
        subprocess.CalledProcessError: One of them cannot be fetched.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, package in BUILT.items():
        if not (folder / name).exists():
            environment = {**os.environ, "GOBIN": str(folder), "GOFLAGS": "-mod=mod"}
            subprocess.run(["go", "install", package], env=environment, check=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        if not (folder / "kubernetes-json-schema").exists():
            pip = [
                sys.executable,
                "-m",
                "pip",
                "install",
                "--quiet",
                "--no-deps",
                "--target",
                scratch,
                SCHEMAS,
            ]
            subprocess.run(pip, check=True)
            taken = Path(scratch) / "taken"
            _take_schemas(Path(scratch) / "kubernetes_validate/kubernetes-json-schema", taken)
            taken.rename(folder / "kubernetes-json-schema")
        if not (folder / "promtool").exists():
            subprocess.run(["apt-get", "download", PROMTOOL], cwd=scratch, check=True)
            (archive,) = Path(scratch).glob("*.deb")
            subprocess.run(["dpkg-deb", "--extract", archive, scratch], check=True)
            (Path(scratch) / "usr/bin/promtool").rename(folder / "promtool")


def _take_schemas(schemas: Path, to: Path) -> None:
    """Copies the schemas of some versions. They refer to each other by web addresses; the copies, by file names."""
    for version in VERSIONS:
        (to / version).mkdir(parents=True)
        for file in (schemas / f"v{version}-local-strict").glob("*.json"):
            schema = json.loads(file.read_text().replace('"/api/_definitions.json#', '"_definitions.json#'))
            schema.pop("$id", None)
            (to / version / file.name).write_text(json.dumps(schema))


if __name__ == "__main__":
    fetch_tools()
