"""
``./run package --test``: what was built, installed as people install it, in fresh systems.

Each fact is a line with what was measured; the first that does not hold ends the run.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from checkout import Checkout, Failed, run, say
from roots import DEBIAN, Root
from roots import scratch as scratch_folder

HERE = Path(__file__).resolve().parent

FIRST_MESSAGE_SECONDS = 30.0
STOP_SECONDS = 5.0
BOOT_SECONDS = 20.0
MOST_EXPOSED = 2.0


def holds(is_so: bool, what: str) -> None:
    """Says that something holds; raises ``Failed`` where it does not."""
    if not is_so:
        raise Failed(f"does not hold: {what}")
    say(f"holds: {what}")


def all_of(checkout: Checkout, output: Path, kinds: Sequence[str], *, here: bool) -> None:
    """
    Everything, of what was built.

    Raises:
        Failed: Something does not hold.
    """
    with scratch_folder(output.with_name(f"{output.name}.trying")) as scratch:
        [engine] = output.glob("python_qpid_proton-*.whl")
        if "deb" in kinds:
            [package] = output.glob("*.deb")
            debian(package, package_before(checkout, engine, scratch), scratch)
            unit(package, scratch)
        say("again, from the beginning")
        build_command = [sys.executable, HERE, "--only", *kinds, *(["--here"] if here else [])]
        run(*build_command, "--output", scratch / "again")
        sums = [(folder / "SHA256SUMS").read_text() for folder in (output, scratch / "again")]
        holds(sums[0] == sums[1], "the same commit gives the same bytes")


def package_before(checkout: Checkout, engine: Path, scratch: Path) -> Path:
    """The package of the commit before, as that builds it; its libraries in C are compiled here."""
    before = scratch / "before"
    checkout.git("worktree", "add", "--force", "--detach", str(before), "HEAD^")
    try:
        builder = before / ".package"
        output = scratch / "packages-before"
        run(sys.executable, builder, "--here", "--engine", engine, "--only", "deb", "--output", output)
        [package] = output.glob("*.deb")
        return package
    finally:
        checkout.git("worktree", "remove", "--force", str(before))


def debian(package: Path, before: Path, scratch: Path) -> None:
    """
    The Debian package in a fresh root of each release: first the package of the commit before, and a message; then
    this one in its place. Back is refused, until its data are gone.
    """
    analysed = run("systemd-analyze", "security", "--offline=true", unit_of(package, scratch))
    exposure = float(re.findall(r"exposure level for rewind.service: ([\d.]+)", analysed)[0])
    holds(exposure <= MOST_EXPOSED, f"the unit's exposure is {exposure}, at most {MOST_EXPOSED}")
    for release in DEBIAN:
        where = f"on Debian {release}"
        root = Root.make(scratch / f"debian-{release}", release)
        for file in (before, package):
            shutil.copy(file, root.path / "root")
        root.run("apt-get", "update")

        def install(file: Path, root: Root = root) -> None:
            root.run("apt-get", "install", "--yes", f"/root/{file.name}", DEBIAN_FRONTEND="noninteractive")

        began = time.monotonic()
        install(before)
        with gateway(root) as beside:
            beside("sh", "-c", "echo first | rewind send orders")
            taken = time.monotonic() - began
            holds(
                taken <= FIRST_MESSAGE_SECONDS,
                f"{where}, from apt-get install to the first accepted message: {taken:.1f} s",
            )
            console = beside(
                "/opt/rewind/bin/python",
                "-c",
                "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8672/').read())",
            )
            holds("Rewind" in console, f"{where}, the console answers")
        settings = root.path / "etc/rewind/rewind.toml"
        settings.write_text(settings.read_text() + "# an administrator's line\n")
        install(package)
        holds(
            installed(root) == package.name.split("_")[1],
            f"{where}, the package of the commit before is upgraded",
        )
        holds(
            "administrator's line" in settings.read_text(), f"{where}, the settings stay as they were edited"
        )
        with gateway(root) as beside:
            beside("sh", "-c", "echo second | rewind send orders")
            brought = beside("rewind", "tail", "orders", "--consume", "--count", "2")
            holds("first" in brought and "second" in brought, f"{where}, what was stored before is delivered")
        try:
            root.run("dpkg", "--install", f"/root/{before.name}")
        except Failed as refused:
            holds("is older than" in str(refused), f"{where}, back to the package before is refused, and why")
        else:
            raise Failed(f"{where}, the package before was installed over this one")
        with gateway(root):
            holds(installed(root) == package.name.split("_")[1], f"{where}, this one serves on after that")
        root.run("dpkg", "--remove", "rewind-gateway")
        holds((root.path / "var/lib/rewind/default.db").exists(), f"{where}, a removal keeps the data")
        root.run("dpkg", "--purge", "rewind-gateway")
        left = [
            name
            for name in ("etc/rewind", "opt/rewind", "var/lib/rewind", "usr/bin/rewind")
            if (root.path / name).exists()
        ]
        holds(left == [], f"{where}, a purge leaves nothing{' but ' + ', '.join(left) if left else ''}")


def unit(package: Path, scratch: Path) -> None:
    """
    The unit under systemd itself, in a root that systemd-nspawn boots: as far as the machine lets it, for a container
    in a container, or control groups of the first version, may be refused.
    """
    for release in DEBIAN:
        where = f"on Debian {release}, under systemd"
        root = Root.make(scratch / f"booted-{release}", release, "systemd", "systemd-sysv")
        shutil.copy(package, root.path / "root")
        root.run("apt-get", "update")
        root.run("apt-get", "install", "--yes", f"/root/{package.name}", DEBIAN_FRONTEND="noninteractive")
        with booted(root) as beside:
            if beside is None:
                say(f"NOT TRIED: {where}: it does not boot here, in a root of its own")
                continue
            active = beside("systemctl", "is-active", "rewind").strip()
            holds(
                active == "active",
                f"{where}, the unit starts by itself, with all its bounds, and says that it is ready",
            )
            beside("sh", "-c", "echo first | rewind send orders")
            beside("systemctl", "reload", "rewind")
            beside("dpkg", "--install", f"/root/{package.name}")
            brought = beside("rewind", "tail", "orders", "--count", "1")
            holds("first" in brought, f"{where}, an upgrade starts it anew, with its data")
            began = time.monotonic()
            beside("systemctl", "stop", "rewind")
            taken = time.monotonic() - began
            holds(taken <= STOP_SECONDS, f"{where}, it stops in {taken:.1f} s")
            log = beside("journalctl", "--unit=rewind", "--no-pager", "--output=cat")
            events = ["ready", "configuration_read_again", "stopped"]
            missing = [event for event in events if f'"{event}"' not in log]
            holds(missing == [], f"{where}, its log is in the journal{missing or ''}")


@contextmanager
def booted(root: Root) -> Iterator[Callable[..., str] | None]:
    """A root whose systemd runs; what runs a command in it, or None where it does not boot."""
    command = ["systemd-nspawn", "--quiet", "--boot", "--register=no", "--keep-unit", "--private-network"]
    with subprocess.Popen(
        [*command, f"--directory={root.path}"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as running:

        def beside(*words: str) -> str:
            [leader] = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
            return run("nsenter", f"--target={leader}", "--all", "--wd=/", *words)

        try:
            yield beside if is_up(beside) else None
        finally:
            running.terminate()
            try:
                running.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                running.kill()


def is_up(beside: Callable[..., str]) -> bool:
    """Whether a system that was started comes up, in time."""
    until = time.monotonic() + BOOT_SECONDS
    while time.monotonic() < until:
        try:
            return beside("systemctl", "is-system-running", "--wait").strip() == "running"
        except (Failed, ValueError, OSError):
            time.sleep(0.5)  # there is no process, or no systemd in it, yet
    return False


def unit_of(package: Path, scratch: Path) -> Path:
    """The unit in a package."""
    run("dpkg-deb", "--extract", package, scratch / "unpacked")
    return scratch / "unpacked/usr/lib/systemd/system/rewind.service"


def installed(root: Root) -> str:
    """The version that is installed."""
    return root.run(
        "dpkg-query", "--show", "--showformat=${Version} ${db:Status-Status}", "rewind-gateway"
    ).partition(" ")[0]


@contextmanager
def gateway(root: Root) -> Iterator[Callable[..., str]]:
    """
    The gateway of an installed package, as its unit starts it: as its user, with its settings. No systemd runs in the
    root, so its bounds are not those of the unit.

    Returns:
        What runs a command beside it, and gives what that prints.
    """
    command = ["setpriv", "--reuid=rewind", "--regid=rewind", "--clear-groups", "--no-new-privs"]
    serve = ["rewind", "serve", "--config", "/etc/rewind/rewind.toml"]
    with started(root.command(*command, *serve, alone=True)) as (pid, _):
        yield lambda *words: run("nsenter", f"--target={pid}", "--mount", "--net", "--pid", "--root", *words)


@contextmanager
def started(command: list[str]) -> Iterator[tuple[int, float]]:
    """
    A gateway that ``unshare`` starts; its process, and after how many seconds it was ready. It must stop in time, and
    well.
    """
    began = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None and running.stderr is not None
        if not running.stdout.readline():
            raise Failed(f"the gateway did not start:\n{running.stderr.read()[-3000:]}")
        taken = time.monotonic() - began
        pid = int(Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text())
        try:
            yield pid, taken
        finally:
            began = time.monotonic()
            os.kill(pid, signal.SIGTERM)
            running.communicate(timeout=60)
    if running.returncode or time.monotonic() - began > STOP_SECONDS:
        raise Failed(f"the gateway ended with {running.returncode} after {time.monotonic() - began:.1f} s")
