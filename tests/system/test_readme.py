"""What the README shows is what happens."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.system.conftest import Start

README = Path(__file__).resolve().parents[2] / "README.md"


def test_the_example_of_the_readme_works_as_written(start: Start, tmp_path: Path) -> None:
    """It publishes three messages and reads them from the log's beginning; only the port is the test's own."""
    found = re.search(r"<!-- example -->\n```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert found is not None
    example = found.group(1)
    assert example.count("127.0.0.1:5672") == 1
    host, port = start().address
    script = tmp_path / "example.py"
    script.write_text(example.replace("127.0.0.1:5672", f"{host}:{port}"))
    ran = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert [line.split(" rmid1:")[0] for line in lines] == ["order 0", "order 1", "order 2"]
    assert len({line.split()[-1] for line in lines}) == 3
