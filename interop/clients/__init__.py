"""The clients that are tried: what each is, how it is installed at its pinned version, how its program is run."""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path

from interop.client import Client

FOLDER = Path(__file__).resolve().parent
_OWN_FILTER = (
    "the library has no way to put a filter of one's own on a source; address options and selectors do it"
)
_PROTON = f"python-qpid-proton {version('python-qpid-proton')}"
_HEARTBEAT = (
    "told that the gateway stops, the library goes on waiting until a heartbeat fails: "
    "connect(heartbeat=4) makes that soon"
)

CLIENTS = (
    Client(
        name="proton-blocking",
        library=f"{_PROTON}, BlockingConnection",
        language="Python",
        command=(sys.executable, str(FOLDER / "proton" / "blocking.py")),
        remarks={
            "failover": "BlockingConnection does not reconnect: the program makes a new one",
            "failover of publisher": "BlockingConnection does not reconnect: the program makes a new one",
        },
        without={
            "modified": "BlockingReceiver.release(delivered=True) says modified without delivery-failed: nothing counts"
        },
    ),
    Client(
        name="proton-container",
        library=f"{_PROTON}, Container",
        language="Python",
        command=(sys.executable, str(FOLDER / "proton" / "container.py")),
        remarks={"failover": _HEARTBEAT, "failover of publisher": _HEARTBEAT},
    ),
    Client(
        name="rhea",
        library="rhea 3.0.5",
        language="JavaScript",
        command=("node", str(FOLDER / "rhea" / "client.js")),
        install=(("npm", "ci", "--omit=dev", "--no-audit", "--no-fund"),),
        folder=FOLDER / "rhea",
        pinned=("package.json", "package-lock.json"),
        needs=("node", "npm"),
    ),
    Client(
        name="qpid-jms",
        library="Apache Qpid JMS 2.10.0",
        language="Java",
        command=("java", "-cp", f"{FOLDER}/qpid_jms/target/classes:{FOLDER}/qpid_jms/target/lib/*", "Client"),
        install=(("mvn", "--batch-mode", "--quiet", "clean", "package"),),
        folder=FOLDER / "qpid_jms",
        pinned=("pom.xml", "src/main/java/Client.java"),
        needs=("java", "javac", "mvn"),
        own_filter=False,
        without={"replay by filter": _OWN_FILTER},
    ),
)
"""In the order in which they are tried. The first is the observer: it shows annotations."""
