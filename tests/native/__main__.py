"""``./run soak native [--minutes M] [PYTEST ARGUMENT...]``: tests and fuzzing, with the C code under sanitizers.

First run the tests of the wire, of deduplication, of sections and of hostile peers, then some minutes of fuzzing. For
these, the engine and our own C are compiled for AddressSanitizer, and our own for UndefinedBehaviorSanitizer, too. Then
the tests run once more with everything as it is installed, on a heap that the C library checks.

The exit status is 1 if a test failed, fuzzing found something, or a sanitizer ended a process. All of this happens in a
copy of the tree, ``build/native/tree``; ``build/native/reports`` has what the sanitizers said.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping

from tests.system.gateway_process import ROOT

FOLDER = ROOT / "build" / "native"
TREE = FOLDER / "tree"
REPORTS = FOLDER / "reports"
LIBRARIES = FOLDER / "libraries"
"""The engine compiled for AddressSanitizer; kept, as compiling takes a minute."""

TESTS = (
    "tests/gateway/amqp",
    "tests/gateway/core/test_dedup.py",
    "tests/amqp_ext/message/test_sections.py",
    "tests/system/test_hostile.py",
)
MINUTES = 5.0
LONGEST_WAIT = 10.0
"""The longest wait of the bystander in seconds: a sanitized gateway is several times slower."""

TEST_SECONDS = 900

ENGINE = "python-qpid-proton"
FOR_ADDRESSES = "-g -O1 -fno-omit-frame-pointer -fsanitize=address"
FOR_LOOPS = f"{FOR_ADDRESSES} -fsanitize=undefined -fno-sanitize-recover=all"

HEAP_CHECKS = {"LD_PRELOAD": "libc_malloc_debug.so.0", "GLIBC_TUNABLES": "glibc.malloc.check=3"}


def main(arguments: list[str] | None = None) -> int:
    """Exit status 0 if nothing was found, else 1."""
    parser = argparse.ArgumentParser(
        prog="./run soak native",
        usage="%(prog)s [-h] [--minutes MINUTES] [PYTEST ARGUMENT...]",
        description="Run tests and fuzzing with the C code compiled for sanitizers, which stop a process at its first "
        "memory error; then the same tests on a heap that checks itself. Other arguments go to pytest, in place of the "
        "tests chosen here. Exit status 1 if something was found; build/native/reports has what the sanitizers said.",
    )
    parser.add_argument(
        "--minutes", type=float, default=MINUTES, help="minutes of fuzzing (%(default)g); 0: none"
    )
    options, chosen = parser.parse_known_args(arguments)
    tests = [
        "pytest",
        "-n",
        "auto",
        "--dist",
        "loadfile",
        "-v",
        "--timeout",
        str(TEST_SECONDS),
        *(chosen or TESTS),
    ]
    fuzzing = ["tests.fuzz", "--minutes", str(options.minutes), "--longest-wait", str(LONGEST_WAIT)]

    copy_tree()
    compile_engine()
    compile_loops(CFLAGS=FOR_LOOPS)
    is_sound = run(tests, sanitized())
    if options.minutes:
        is_sound &= run(fuzzing, sanitized())
    compile_loops()  # without sanitizers, as they are installed
    is_sound &= run(tests, HEAP_CHECKS)
    reports = sorted(REPORTS.iterdir())
    for report in reports:
        print(report.read_text(errors="replace"), file=sys.stderr)
    return 0 if is_sound and not reports else 1


def copy_tree() -> None:
    """Copy the checkout with uncommitted files: nothing is compiled for a sanitizer in a tree that others use."""
    for folder in (TREE, REPORTS):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(listing, cwd=ROOT, check=True, capture_output=True, text=True)
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (TREE / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, TREE / name)


def compile_loops(**environment: str) -> None:
    """Compile them into the copy, in place of those that are there."""
    subprocess.run(
        [sys.executable, ".build/extension.py"], cwd=TREE, env=os.environ | environment, check=True
    )


def compile_engine() -> None:
    """From the source that the lock names; pip's cache is neither read nor written."""
    [wanted] = requirement(ENGINE, (ROOT / ".locks" / "base.txt").read_text())
    lock = LIBRARIES / "lock.txt"
    if lock.exists() and lock.read_text() == wanted:
        return
    shutil.rmtree(LIBRARIES, ignore_errors=True)
    LIBRARIES.mkdir()
    pip = ["pip", "--disable-pip-version-check", "--no-cache-dir", "install", "--no-deps", "--no-compile"]
    source = ["--no-binary", ENGINE, "--require-hashes", "--requirement", "/dev/stdin"]
    subprocess.run(
        [sys.executable, "-m", *pip, "--target", str(LIBRARIES), *source],
        cwd=ROOT,
        env=os.environ | {"CFLAGS": FOR_ADDRESSES, "PIP_BUILD_CONSTRAINT": ".locks/build.txt"},
        input=wanted,
        text=True,
        check=True,
    )
    lock.write_text(wanted)


def requirement(name: str, lock: str) -> Iterator[str]:
    """The lines of one requirement in a lock, with its hashes."""
    for found in re.finditer(rf"^{re.escape(name)}==(?:.*\\\n)*.*\n", lock, re.MULTILINE):
        yield found[0]


def sanitizer(name: str) -> str:
    """The path of a sanitizer's library; for a library that is missing, the compiler prints only its name."""
    asked = [os.environ.get("CC", "cc"), f"-print-file-name={name}"]
    path = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
    if path == name:
        sys.exit(f"the compiler has no {name}: this needs gcc")
    return path


def sanitized() -> dict[str, str]:
    """An environment in which a process ends at its first error, and the sanitizer writes a report into a file."""
    libraries = " ".join(sanitizer(name) for name in ("libasan.so", "libubsan.so"))
    said = f"log_path={REPORTS}/report:abort_on_error=1"
    return {
        "LD_PRELOAD": libraries,
        # No leak check, as Python leaks much. Freed memory is kept to find later uses, but little, as tests measure
        # memory.
        "ASAN_OPTIONS": f"{said}:detect_leaks=0:detect_stack_use_after_return=1:quarantine_size_mb=8",
        "UBSAN_OPTIONS": f"{said}:print_stacktrace=1",
        "PYTHONMALLOC": "malloc",  # Python's own pools would hide the use of freed memory
        "PYTHONPATH": f"{TREE}{os.pathsep}{LIBRARIES}",
    }


def run(arguments: list[str], environment: Mapping[str, str]) -> bool:
    """Run a Python module in the copy, which must use the loops in C; returns whether it succeeded."""
    given = os.environ | {"PYTHONPATH": str(TREE), "REWIND_NATIVE": "1"} | environment
    return (
        subprocess.run([sys.executable, "-m", *arguments], cwd=TREE, env=given, check=False).returncode == 0
    )


if __name__ == "__main__":
    sys.exit(main())
