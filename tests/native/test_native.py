"""The checks of the C code find the errors that they are meant for."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from . import __main__ as native

FREED, TWICE, PAST_THE_END = "c", "2", "p"
PROGRAM = """
#include <stdlib.h>
#include <string.h>

int main(int count, char **arguments) {
    (void)count;
    char *volatile place = malloc(40);
    if (arguments[1][0] == 'p') memset(place, 7, 41);
    free(place);
    if (arguments[1][0] == 'c') memset(place, 7, 40);
    if (arguments[1][0] == '2') free(place);
}
"""
"""Plain C, not compiled for a sanitizer."""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that makes the memory error that its argument names."""
    folder = tmp_path_factory.mktemp("faults")
    (folder / "faults.c").write_text(PROGRAM)
    compile_it = [os.environ.get("CC", "cc"), "-O0", "-w", "faults.c", "-o", "faults"]
    subprocess.run(compile_it, cwd=folder, check=True)
    return folder / "faults"


def status(program: Path, fault: str, environment: Mapping[str, str]) -> int:
    """The exit status of the program."""
    return subprocess.run([program, fault], env=environment, capture_output=True, check=False).returncode


@pytest.mark.parametrize("fault", [FREED, TWICE, PAST_THE_END])
def test_sanitizer_ends_a_process_and_reports(
    program: Path, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report goes to a file, because a gateway's standard error is its log."""
    monkeypatch.setattr(native, "REPORTS", tmp_path)
    assert status(program, fault, native.sanitized()) < 0
    [report] = tmp_path.iterdir()
    assert "AddressSanitizer" in report.read_text()


@pytest.mark.parametrize("fault", [TWICE, PAST_THE_END])
def test_heap_that_is_checked_ends_a_process(program: Path, fault: str) -> None:
    """The C library's check finds less than the sanitizer, but needs no special compilation."""
    assert status(program, fault, native.HEAP_CHECKS) < 0


def test_engine_is_compiled_from_the_source_that_the_lock_names() -> None:
    """The source has the lock's hashes; nothing of the lock's next requirement is used."""
    lock = (native.ROOT / ".locks" / "base.txt").read_text()
    [wanted] = native.requirement(native.ENGINE, lock)
    assert wanted.startswith(f"{native.ENGINE}==0.40.0 \\\n    --hash=sha256:")
    assert wanted.count("==") == 1
