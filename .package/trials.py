"""
``./run package --test``: installs the packages as people install them, in fresh systems, and tries them.

Each fact that holds is printed on a line with what was measured; the first that does not hold ends the run.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import chart
import image
import wheels
from checkout import ROOT, Checkout, Failed, run, say
from roots import DEBIAN, Root
from roots import scratch as scratch_folder

HERE = Path(__file__).resolve().parent

FIRST_MESSAGE_SECONDS = 30.0
STOP_SECONDS = 5.0
BOOT_SECONDS = 20.0
MOST_EXPOSED = 2.0
MOST_IMAGE_BYTES = 200 * 1000**2
IMAGE_START_SECONDS = 2.0


def holds(is_so: bool, what: str, seen: str = "") -> None:
    """Print that something holds; raises ``Failed`` where it does not, with the end of what was seen instead."""
    if not is_so:
        raise Failed(f"does not hold: {what}\n{seen[-3000:]}")
    say(f"holds: {what}")


def all_of(checkout: Checkout, output: Path, kinds: Sequence[str], *, here: bool) -> None:
    """
    Try all packages that were built.

    Raises:
        Failed: Something does not hold.
    """
    with scratch_folder(output.with_name(f"{output.name}.trying")) as scratch:
        [engine] = output.glob("python_qpid_proton-*.whl")
        environments(checkout, output, scratch)
        if "deb" in kinds:
            [package] = output.glob("*.deb")
            debian(package, package_before(checkout, engine, scratch), scratch)
            unit(package, scratch)
        if "image" in kinds:
            for archive in sorted(output.glob("*.oci.tar")):
                container(archive, scratch)
        if "chart" in kinds:
            chart_and_rules(checkout)
        say("again, from the beginning")
        build_command = [sys.executable, HERE, "--only", *kinds, *(["--here"] if here else [])]
        run(*build_command, "--output", scratch / "again")
        sums = [(folder / "SHA256SUMS").read_text() for folder in (output, scratch / "again")]
        holds(sums[0] == sums[1], "the same commit gives the same bytes")


GUIDE = ROOT / "docs/guides/install.md"


def told(heading: str, language: str = "sh") -> list[str]:
    """What the guide tells its reader to type under a heading: the lines of its blocks in a language."""
    section = GUIDE.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    blocks = re.findall(rf"(?ms)^```{language}\n(.*?)^```$", section)
    return "".join(blocks).replace("\\\n", "").splitlines()


PYTHONS = ("3.11", "3.12", "3.13", "3.14")
"""The Pythons that the wheels are for."""


def environments(checkout: Checkout, output: Path, scratch: Path) -> None:
    """
    Try the wheels: pip installs them, with their requirements from a package index, into an empty environment of each
    Python. A Python that this machine does not have is taken from the next Debian, if that has it.
    """
    for version in PYTHONS:
        folder = scratch / f"environment-{version}"
        if python := python_here(version):
            folder.mkdir()
            for wheel in output.glob("*.whl"):
                (folder / wheel.name).symlink_to(wheel)
            make, install, serve = told("pip")
            run("sh", "-c", f"{make.replace('python3', python)} && {install} --quiet", cwd=folder)
            words = [str(folder / serve.split()[0]), *serve.split()[1:]]
            serves(f"Python {version}, by pip", words, folder / "data", words[:1])
            continue
        try:
            root = Root.make(folder, "testing", f"python{version}")
        except Failed:
            say(f"NOT TRIED: Python {version}: there is none on this machine, and none in the next Debian")
            continue
        made = list(output.glob("*.whl"))
        wheels.site_packages(root.path / "opt/lib", checkout, made, ["base"], version, scratch)
        rewind = root.command("env", "PYTHONPATH=/opt/lib", f"python{version}", "-m", "gateway")
        serves(f"Python {version}, of the next Debian", [*rewind, "serve"], Path("/opt/data"), rewind)


def python_here(version: str) -> str | None:
    """This machine's Python of that version: on the path, or built by pyenv; None if there is none."""
    places = [f"python{version}", *map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))]
    for place in places:
        try:
            run(place, "-c", "import ensurepip, ssl, venv")
        except (Failed, OSError):
            continue
        return place
    return None


def serves(where: str, serve: Sequence[str], data: Path, rewind: Sequence[str]) -> None:
    """Check that a gateway starts, that it stores and delivers a message, and that its loops are the compiled ones."""
    free = ("--data", str(data), "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
    with started([*serve, *free]) as ready:
        url, admin = ready.said["amqp"][0], ready.said["admin"]
        run("sh", "-c", 'echo first | "$@"', "sh", *rewind, "send", "orders", "--url", url)
        brought = run(*rewind, "tail", "orders", "--count", "1", "--url", url)
        loops = run(*rewind, "status", "--all", "--json", "--admin", admin)
        holds(
            "first" in brought and '"wireLoops": "native"' in loops,
            f"{where}: a gateway serves, with its compiled loops; ready after {ready.seconds:.1f} s",
        )


def package_before(checkout: Checkout, engine: Path, scratch: Path) -> Path:
    """Build the package of the commit before, with that commit's own code; C is compiled with this machine's tools."""
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
    Try the Debian package in a fresh root of each release: first install the package of the commit before and send a
    message, then upgrade to this package. The way back is refused; a removal keeps the data, a purge deletes them.
    """
    analysed = run("systemd-analyze", "security", "--offline=true", unit_of(package, scratch))
    exposure = float(re.findall(r"exposure level for rewind.service: ([\d.]+)", analysed)[0])
    holds(exposure <= MOST_EXPOSED, f"the unit's exposure is {exposure}, at most {MOST_EXPOSED}")
    for release in DEBIAN:
        where = f"on Debian {release}"
        root = Root.make(scratch / f"debian-{release}", release)
        for file, folder in ((before, "before"), (package, "this")):
            (root.path / "root" / folder).mkdir()
            shutil.copy(file, root.path / "root" / folder)
        root.run("apt-get", "update")

        def install(folder: str, root: Root = root) -> None:
            line = told("Debian")[0]
            root.run("sh", "-c", f"cd /root/{folder} && {line} --yes", DEBIAN_FRONTEND="noninteractive")

        began = time.monotonic()
        install("before")
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
        install("this")
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
            root.run("dpkg", "--install", f"/root/before/{before.name}")
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
    Try the unit under systemd itself, in a root that systemd-nspawn boots, if the machine permits: it may refuse a
    container in a container, or have control groups of the first version.
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
    """Boot a root's systemd; yields a function that runs a command in it, or None where it does not boot."""
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
    """Whether a system that was started is up in time."""
    until = time.monotonic() + BOOT_SECONDS
    while time.monotonic() < until:
        try:
            return beside("systemctl", "is-system-running", "--wait").strip() == "running"
        except (Failed, ValueError, OSError):
            time.sleep(0.5)  # there is no process yet, or no systemd in it
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
    Run the gateway of an installed package as its unit does: as its user, with its settings. No systemd runs in the
    root, so the unit's bounds do not apply.

    Returns:
        A function that runs a command next to the gateway, and returns what it prints.
    """
    command = ["setpriv", "--reuid=rewind", "--regid=rewind", "--clear-groups", "--no-new-privs"]
    serve = ["rewind", "serve", "--config", "/etc/rewind/rewind.toml"]
    with started(root.command(*command, *serve, alone=True)) as ready:
        yield lambda *words: run(
            "nsenter", f"--target={ready.pid}", "--mount", "--net", "--pid", "--root", *words
        )


def container(archive: Path, scratch: Path) -> None:
    """
    Try an image under crun: as its user, with a read-only root; its volume and the guide's settings are mounted.

    crun refuses to run where both versions of control groups are mounted, so they are hidden from it.
    """
    name = archive.name.removesuffix(".oci.tar")
    size = archive.stat().st_size
    holds(size <= MOST_IMAGE_BYTES, f"{name}: {size / 1e6:.0f} MB, at most {MOST_IMAGE_BYTES / 1e6:.0f}")
    layout, bundle = scratch / f"{name}.layout", scratch / f"{name}.bundle"
    with tarfile.open(archive) as opened:
        opened.extractall(layout, filter="data")
    manifest, configuration = image.read(layout)
    tag = manifest["annotations"]["org.opencontainers.image.ref.name"]
    run("umoci", "unpack", "--image", f"{layout}:{tag}", bundle)
    tools = [tool for tool in ("sh", "bash", "apt", "dpkg") if (bundle / "rootfs/usr/bin" / tool).exists()]
    holds(tools == [], f"{name}: there is no shell in it, and no package manager{tools or ''}")
    volume, settings = bundle / "volume", bundle / "settings"
    volume.mkdir()
    os.chown(volume, image.USER, image.USER)
    settings.mkdir()
    runtime = json.loads((bundle / "config.json").read_text())
    runtime["root"]["readonly"] = True
    runtime["process"]["terminal"] = False
    runtime["process"]["capabilities"] = {}
    runtime["process"].pop("rlimits")  # umoci limits open files to 1,024; podman and Docker do not
    mounts = runtime["mounts"]
    entry_point, usual = configuration["config"]["Entrypoint"], configuration["config"]["Cmd"]

    def crun(*words: str, mounted: dict[str, Path]) -> list[str]:
        """The command line that runs these words in the image."""
        runtime["process"]["args"] = words
        runtime["mounts"] = mounts + [
            {"destination": place, "type": "bind", "source": str(folder), "options": ["rbind", access]}
            for place, folder in mounted.items()
            for access in ("rw" if place == "/data" else "ro",)
        ]
        (bundle / "config.json").write_text(json.dumps(runtime))
        groups = "umount --recursive /sys/fs/cgroup && mount -t tmpfs none /sys/fs/cgroup"
        command = f'{groups} && exec crun --cgroup-manager=disabled run --bundle "$0" "$1"'
        return ["unshare", "--mount", "--propagation", "private", "sh", "-c", command, str(bundle), name]

    def ended(*words: str, given: str = "") -> subprocess.CompletedProcess[str]:
        """Run a command that ends by itself in the image; return its result."""
        command = crun(*words, mounted={"/data": volume})
        return subprocess.run(command, input=given, capture_output=True, text=True, check=False)

    refused = ended(*entry_point, *usual)
    holds(
        refused.returncode == image.WRONG_SETTINGS and "configure users" in refused.stderr,
        f"{name}: by itself it is open to nobody, and says what to do",
        refused.stderr,
    )
    if "-full" in name:
        extras = ended("/opt/rewind/bin/python", "-I", "-c", "import deltalake, pyarrow, psycopg")
        holds(extras.returncode == 0, f"{name}: it has the archive, and PostgreSQL's driver", extras.stderr)
    hashed = ended(*entry_point, "hash-password", "--stdin", given="secret\n")
    (settings / "ann.hash").write_text(hashed.stdout)
    (settings / "rewind.toml").write_text("\n".join(told("Container", "toml")))

    serve = crun(*entry_point, *usual, mounted={"/data": volume, "/etc/rewind": settings})
    taken = []
    for messages in (("first", "second"), ()):
        with started(serve) as ready:
            taken.append(ready.seconds)
            status = Path(f"/proc/{ready.pid}/status").read_text()
            found = dict(re.findall(r"(?m)^(Uid|NoNewPrivs|CapEff):\s+(\w+)", status))
            expected = {"Uid": str(image.USER), "NoNewPrivs": "1", "CapEff": "0" * 16}
            holds(found == expected, f"{name}: it serves as user {image.USER} with no privilege", f"{found}")

            def beside(*words: str, pid: int = ready.pid) -> str:
                inside = ("nsenter", f"--target={pid}", "--mount", "--net", "--pid", "--root")
                user = (f"--setuid={image.USER}", f"--setgid={image.USER}")
                return run(*inside, *user, *words, REWIND_USER="ann", REWIND_PASSWORD="secret")

            beside(*configuration["config"]["Healthcheck"]["Test"][1:])
            for message in messages:
                beside("/opt/rewind/bin/python", "-c", f"open('/data/message', 'w').write('{message}')")
                beside(*entry_point, "send", "orders", "/data/message")
            brought = beside(*entry_point, "tail", "orders", "--count", "2")
            holds("first" in brought and "second" in brought, f"{name}: it is healthy, and has what was sent")
    holds(True, f"{name}: SIGTERM stops it within {STOP_SECONDS:.0f} s, and nothing is lost")
    holds(
        min(taken) <= IMAGE_START_SECONDS,
        f"{name}: ready after {min(taken):.1f} s, the quicker of two starts",
    )


def chart_and_rules(checkout: Checkout) -> None:
    """Check the chart (Helm, kubeconform) and the rules (promtool): run the suite's tests that need these tools."""
    chart.fetch_tools()
    said = run(
        *(sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider"),
        *("tests/chart", "tests/gateway/admin/test_monitoring.py"),
        cwd=checkout.root,
    )
    result = said.splitlines()[-1]
    holds("skipped" not in result, f"the chart and the rules, with their tools: {result}")


# ------------------------------------------------------------------------------------------------ a gateway that runs


@dataclass(frozen=True)
class Started:
    """A gateway that runs."""

    pid: int
    seconds: float
    """From its start until it was ready."""
    said: dict[str, Any]
    """The line on stdout that says so."""


@contextmanager
def started(command: list[str]) -> Iterator[Started]:
    """Run a gateway, by itself or in a root that another program makes for it. It must stop in time, with status 0."""
    began = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None and running.stderr is not None
        line = running.stdout.readline()
        if not line:
            raise Failed(f"the gateway did not start:\n{running.stderr.read()[-3000:]}")
        taken = time.monotonic() - began
        children = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
        pid = int(children[0]) if children else running.pid
        try:
            yield Started(pid, taken, json.loads(line))
        finally:
            began = time.monotonic()
            os.kill(pid, signal.SIGTERM)
            running.communicate(timeout=60)
    if running.returncode or time.monotonic() - began > STOP_SECONDS:
        raise Failed(f"the gateway ended with {running.returncode} after {time.monotonic() - began:.1f} s")
