"""
What the packages are made of: bills of material in the format CycloneDX.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from checkout import Checkout, run
from wheels import locked


def write(
    checkout: Checkout, file: Path, locks: Iterable[str], python: str, debian: Iterable[tuple[str, str]] = ()
) -> Path:
    """
    Writes a bill of materials.

    Args:
        locks: The names of the locks that list what the gateway needs.
        python: The Python that the gateway runs on.
        debian: Names and versions of Debian's packages in the image.
    """
    requirements = file.with_suffix(".requirements")
    requirements.write_text("".join(f"{entry}\n" for entry in locked(checkout.root, locks, python).values()))
    try:
        text = run(
            *(Path(sys.executable).with_name("cyclonedx-py"), "requirements", requirements),
            *(
                "--pyproject",
                checkout.root / "pyproject.toml",
                "--output-reproducible",
                "--spec-version",
                "1.6",
            ),
            SOURCE_DATE_EPOCH=str(checkout.epoch),
        )
    finally:
        requirements.unlink()
    bill: dict[str, Any] = json.loads(text)
    vendored = json.loads((checkout.root / "gateway/admin/console/static/vendor/vendored.json").read_text())
    bill["components"] += [
        {
            "type": "library",
            "bom-ref": f"npm-{one['package']}",
            "name": one["package"],
            "version": one["version"],
            "purl": f"pkg:npm/{quote(one['package'])}@{one['version']}",
            "licenses": [{"license": {"id": one["licence"]}}],
        }
        for one in vendored
    ]
    bill["components"] += [
        {
            "type": "library",
            "bom-ref": f"debian-{name}",
            "name": name,
            "version": version,
            "purl": f"pkg:deb/debian/{name}@{quote(version)}?arch=amd64",
        }
        for name, version in debian
    ]
    file.write_text(json.dumps(bill, indent=2, sort_keys=True) + "\n")
    return file
