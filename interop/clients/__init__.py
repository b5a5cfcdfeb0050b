"""The clients that are tried: what each is, how it is installed at its pinned version, how its program is run."""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path

from interop.client import Client

FOLDER = Path(__file__).resolve().parent
SHORT_LIVED_JAVA = (
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-XX:+UnlockDiagnosticVMOptions",
    "-XX:-BytecodeVerificationRemote",
)
"""For a program that lives for seconds: the second compiler, a collector with threads and the verification of the
libraries' classes would cost more than they save."""
_JAVA = ("java", *SHORT_LIVED_JAVA, "-cp")
_OWN_FILTER = (
    "the library has no way to put a filter of one's own on a source; address options and selectors do it"
)
_IN_AN_ENVIRONMENT = (
    (sys.executable, "-m", "venv", "--clear", "env"),
    ("env/bin/python", "-m", "pip", "install", "--quiet", "--require-hashes", "-r", "requirements.txt"),
)
"""Installs what a folder's requirements.txt names into an environment of its own."""
_PROTON = f"python-qpid-proton {version('python-qpid-proton')}"
_HEARTBEAT = (
    "told that the gateway stops, the library goes on waiting until a heartbeat fails: "
    "one of 4 s makes that soon"
)
_TRANSACTIONS = ("transaction commit", "transaction rollback", "transaction lost")
_NO_TRANSACTIONS = dict.fromkeys(_TRANSACTIONS, "its API has no transactions")
_NO_TRANSACTIONS_OF_RHEA = dict.fromkeys(
    _TRANSACTIONS,
    "its API has no transactions, nor the parts of one: a target is no coordinator, and a transfer that it sends "
    "carries no state",
)
_RABBITMQ = FOLDER / "rabbitmq_amqp_python"
_RABBITMQ_GO = FOLDER / "rabbitmq_amqp_go"
_RABBITMQ_JAVA = FOLDER / "rabbitmq_amqp_java"
_EVENT_HUBS = FOLDER / "azure_eventhub"
_EVENT_HUBS_JS = FOLDER / "azure_eventhub_js"
_EVENT_HUBS_GO = FOLDER / "azure_eventhubs_go"
_EVENT_HUBS_JAVA = FOLDER / "azure_eventhubs_java"
_WITHOUT_OF_EVENT_HUBS = {
    **dict.fromkeys(
        (
            "queue",
            "competing",
            "request reply",
            "browser",
            "client acknowledge",
            "dups ok acknowledge",
            "redelivery",
            "released",
            "modified",
            "redelivery delay",
            "message groups",
            "rejected",
            "exclusive taken",
        ),
        "event hubs are logs: reading takes nothing, and an event has no outcome",
    ),
    **dict.fromkeys(
        (
            "topic",
            "durable subscription",
            "changed subscription",
            "shared subscription",
            "shared durable subscription",
            "replay of durable subscription",
        ),
        "there are no topics, and every consumer group reads all of a hub",
    ),
    **dict.fromkeys(
        ("selector", "selector over another type", "replay by selector term"),
        "there are no filters but the starting position",
    ),
    **dict.fromkeys(
        ("transaction commit", "transaction rollback", "transaction lost"),
        "there are no transactions; a batch is one: see batch of events",
    ),
    **dict.fromkeys(
        (
            "replay by filter",
            "replay by address option",
            "replay after id",
            "replay from date",
            "replay into live",
            "bounded replay",
            "bad start",
            "unknown id",
            "future date",
            "replay by inactive consumer",
            "no such queue",
            "publishing to the log",
            "last value",
        ),
        "takes names of event hubs alone, and starting positions: see below",
    ),
    "delayed delivery": "an event hub is a log, and its readers have every event at once",
    **dict.fromkeys(
        ("large message", "failover", "failover of publisher"),
        "is tried with events, which are not taken: see below",
    ),
}
_WITHOUT_OF_RABBITMQ = {
    **_NO_TRANSACTIONS,
    **dict.fromkeys(
        (
            "topic",
            "durable subscription",
            "changed subscription",
            "shared subscription",
            "shared durable subscription",
            "replay of durable subscription",
        ),
        "consumes from queues alone; an exchange is bound to a queue: see exchange and binding",
    ),
    **dict.fromkeys(
        (
            "replay by filter",
            "replay after id",
            "replay from date",
            "replay into live",
            "bounded replay",
            "bad start",
            "unknown id",
            "future date",
            "publishing to the log",
        ),
        "takes addresses of queues and exchanges alone; streams are what it reads history from: see below",
    ),
    "browser": "has no distribution mode",
    **dict.fromkeys(("selector", "selector over another type"), "filters streams alone: see SQL filter"),
    "replay by selector term": "filters streams alone",
    "dups ok acknowledge": "settles each message, or has them settled before they are sent",
}
_CREDIT_AT_ANY_TIME = (
    "has credit for more at any time: what it gives back comes to it again before it can close"
)
_NAMES_ALONE = dict.fromkeys(
    ("replay by address option", "exclusive taken", "replay by inactive consumer", "no such queue"),
    "takes the name of a queue, and percent-encodes the '?' that options begin with",
)
_NO_CONSUMER_TIMEOUT = "has no such argument of a queue at this version"
_NO_CONSUMER_PRIORITY = "its consumers have no priority"
_DISCARDED = "discarding with annotations says undeliverable-here, too: another consumer gets the message"
_RECOVERY = (
    "the library's own recovery calls a method that a stream's options do not have, and attaches a queue's consumer "
    "twice by one name on one session, of which the second takes the first one's place: the program connects anew"
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
            **_NO_TRANSACTIONS,
            "modified": "BlockingReceiver.release(delivered=True) says modified without delivery-failed: "
            "nothing counts",
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
        name="proton-cpp",
        library="Qpid Proton C++ 0.37.0, as Debian 12 has it",
        language="C++",
        command=(str(FOLDER / "proton_cpp" / "target" / "client"),),
        install=(
            ("mkdir", "-p", "target"),
            ("g++", "-std=c++17", "-O1", "-o", "target/client", "client.cpp", "-lqpid-proton-cpp"),
        ),
        folder=FOLDER / "proton_cpp",
        pinned=("client.cpp",),
        needs=("g++",),
        remarks={"failover": _HEARTBEAT, "failover of publisher": _HEARTBEAT},
        without={
            **_NO_TRANSACTIONS,
            "modified": "delivery::modify() says modified without delivery-failed: nothing counts",
        },
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
        without=_NO_TRANSACTIONS_OF_RHEA,
    ),
    Client(
        name="rhea-websocket",
        library="rhea 3.0.5 on ws 8.18.3, over WebSocket",
        language="JavaScript",
        command=("node", str(FOLDER / "rhea" / "client.js")),
        install=(("npm", "ci", "--omit=dev", "--no-audit", "--no-fund"),),
        folder=FOLDER / "rhea",
        pinned=("package.json", "package-lock.json"),
        needs=("node", "npm"),
        without=_NO_TRANSACTIONS_OF_RHEA,
        is_websocket=True,
    ),
    Client(
        name="qpid-jms",
        library="Apache Qpid JMS 2.10.0",
        language="Java",
        command=(*_JAVA, f"{FOLDER}/qpid_jms/target/classes:{FOLDER}/qpid_jms/target/lib/*", "Client"),
        install=(("mvn", "--batch-mode", "--quiet", "clean", "package"),),
        folder=FOLDER / "qpid_jms",
        pinned=("pom.xml", "src/main/java/Client.java"),
        needs=("java", "javac", "mvn"),
        own_filter=False,
        without={"replay by filter": _OWN_FILTER},
    ),
    Client(
        name="protonj2",
        library="Apache Qpid ProtonJ2 client 1.1.0",
        language="Java",
        command=(*_JAVA, f"{FOLDER}/protonj2/target/classes:{FOLDER}/protonj2/target/lib/*", "Client"),
        install=(("mvn", "--batch-mode", "--quiet", "clean", "package"),),
        folder=FOLDER / "protonj2",
        pinned=("pom.xml", "src/main/java/Client.java"),
        needs=("java", "javac", "mvn"),
    ),
    Client(
        name="go-amqp",
        library="github.com/Azure/go-amqp 1.4.0",
        language="Go",
        command=(str(FOLDER / "go_amqp" / "target" / "client"),),
        install=(
            ("mkdir", "-p", "target"),
            ("go", "build", "-mod=readonly", "-buildvcs=false", "-o", "target/client", "."),
        ),
        folder=FOLDER / "go_amqp",
        pinned=("go.mod", "go.sum", "client.go"),
        needs=("go",),
        remarks={
            "failover": "the library does not reconnect: the program dials anew",
            "failover of publisher": "the library does not reconnect: the program dials anew",
        },
        without={**_NO_TRANSACTIONS, "browser": "has no distribution mode"},
    ),
    Client(
        name="fe2o3-amqp",
        library="fe2o3-amqp 0.18.4",
        language="Rust",
        command=(str(FOLDER / "fe2o3_amqp" / "target" / "debug" / "client"),),
        install=(("cargo", "build", "--quiet", "--locked"),),
        folder=FOLDER / "fe2o3_amqp",
        pinned=("Cargo.toml", "Cargo.lock", "src/main.rs", "src/options.rs", "src/lines.rs"),
        needs=("cargo",),
        remarks={
            "failover": "the library does not reconnect: the program connects anew",
            "failover of publisher": "the library does not reconnect, nor end a send that is under way when the "
            "connection ends: the program waits 5 s and connects anew",
        },
    ),
    Client(
        name="rabbitmq-amqp-python",
        library="rabbitmq-amqp-python-client 1.0.1",
        language="Python",
        command=(str(_RABBITMQ / "env" / "bin" / "python"), str(_RABBITMQ / "client.py")),
        install=_IN_AN_ENVIRONMENT,
        folder=_RABBITMQ,
        pinned=("requirements.txt",),
        dialect="rabbitmq",
        own_filter=False,
        remarks={
            "failover": _RECOVERY,
            "failover of publisher": _RECOVERY,
            "reconnect resumes": _RECOVERY,
            "modified": _DISCARDED,
        },
        without={
            **_WITHOUT_OF_RABBITMQ,
            "released": _CREDIT_AT_ANY_TIME,
            "stream from interval": "StreamConsumerOptions takes first, last, next, an offset or a datetime",
            "consumer priority": _NO_CONSUMER_PRIORITY,
            "delayed retry": "QuorumQueueSpecification has no place for its arguments",
            "consumer timeout": _NO_CONSUMER_TIMEOUT,
            "exclusive queue recovered": "declares nothing anew, and its own recovery fails: see failover",
        },
    ),
    Client(
        name="rabbitmq-amqp-java",
        library="com.rabbitmq.client:amqp-client 1.5.0",
        language="Java",
        command=(
            *_JAVA,
            f"{_RABBITMQ_JAVA}/target/classes:{_RABBITMQ_JAVA}/target/lib/*",
            "Client",
        ),
        install=(("mvn", "--batch-mode", "--quiet", "clean", "package"),),
        folder=_RABBITMQ_JAVA,
        pinned=("pom.xml", *(f"src/main/java/{name}.java" for name in ("Client", "Lines", "Topology"))),
        needs=("java", "javac", "mvn"),
        dialect="rabbitmq",
        own_filter=False,
        without={**_WITHOUT_OF_RABBITMQ, **_NAMES_ALONE},
    ),
    Client(
        name="rabbitmq-amqp-go",
        library="github.com/rabbitmq/rabbitmq-amqp-go-client 1.0.0",
        language="Go",
        command=(str(_RABBITMQ_GO / "target" / "client"),),
        install=(
            ("mkdir", "-p", "target"),
            ("go", "build", "-mod=readonly", "-buildvcs=false", "-o", "target/client", "."),
        ),
        folder=_RABBITMQ_GO,
        pinned=("go.mod", "go.sum", "client.go", "management.go"),
        needs=("go",),
        dialect="rabbitmq",
        own_filter=False,
        remarks={"modified": _DISCARDED},
        without={
            **_WITHOUT_OF_RABBITMQ,
            **_NAMES_ALONE,
            "released": _CREDIT_AT_ANY_TIME,
            "consumer priority": _NO_CONSUMER_PRIORITY,
            "consumer timeout": _NO_CONSUMER_TIMEOUT,
            **dict.fromkeys(
                ("stream from timestamp", "stream from interval"),
                "its offsets are first, last, next or a number",
            ),
        },
    ),
    Client(
        name="azure-eventhub",
        library="azure-eventhub 5.15.1",
        language="Python",
        command=(str(_EVENT_HUBS / "env" / "bin" / "python"), str(_EVENT_HUBS / "client.py")),
        install=_IN_AN_ENVIRONMENT,
        folder=_EVENT_HUBS,
        pinned=("requirements.txt",),
        dialect="event_hubs",
        own_filter=False,
        without=_WITHOUT_OF_EVENT_HUBS,
    ),
    Client(
        name="azure-eventhub-js",
        library="@azure/event-hubs 6.0.4",
        language="JavaScript",
        command=("node", str(_EVENT_HUBS_JS / "client.js")),
        install=(("npm", "ci", "--omit=dev", "--no-audit", "--no-fund"),),
        folder=_EVENT_HUBS_JS,
        pinned=("package.json", "package-lock.json"),
        needs=("node", "npm"),
        dialect="event_hubs",
        own_filter=False,
        without={
            **_WITHOUT_OF_EVENT_HUBS,
            "events from enqueued time inclusive": "isInclusive is ignored beside enqueuedOn",
        },
    ),
    Client(
        name="azure-eventhubs-go",
        library="github.com/Azure/azure-sdk-for-go/sdk/messaging/azeventhubs/v2 2.0.2",
        language="Go",
        command=(str(_EVENT_HUBS_GO / "target" / "client"),),
        install=(
            ("mkdir", "-p", "target"),
            ("go", "build", "-mod=readonly", "-buildvcs=false", "-o", "target/client", "."),
        ),
        folder=_EVENT_HUBS_GO,
        pinned=("go.mod", "go.sum", "client.go"),
        needs=("go",),
        dialect="event_hubs",
        own_filter=False,
        without=_WITHOUT_OF_EVENT_HUBS,
    ),
    Client(
        name="azure-eventhubs-java",
        library="com.azure:azure-messaging-eventhubs 5.21.3",
        language="Java",
        command=(
            *_JAVA,
            f"{_EVENT_HUBS_JAVA}/target/classes:{_EVENT_HUBS_JAVA}/target/lib/*",
            "Client",
        ),
        install=(("mvn", "--batch-mode", "--quiet", "clean", "package"),),
        folder=_EVENT_HUBS_JAVA,
        pinned=("pom.xml", "src/main/java/Client.java"),
        needs=("java", "javac", "mvn"),
        dialect="event_hubs",
        own_filter=False,
        without={
            **_WITHOUT_OF_EVENT_HUBS,
            "events from offset inclusive": "isInclusive is for sequence numbers",
            "events from enqueued time inclusive": "isInclusive is for sequence numbers",
        },
    ),
    Client(
        name="azure-eventhubs-rust",
        library="azure_messaging_eventhubs 0.16.0",
        language="Rust",
        command=(str(FOLDER / "azure_eventhubs_rust" / "target" / "debug" / "client"),),
        install=(("cargo", "build", "--quiet", "--locked"),),
        folder=FOLDER / "azure_eventhubs_rust",
        pinned=("Cargo.toml", "Cargo.lock", "src/main.rs", "src/store.rs"),
        needs=("cargo",),
        dialect="event_hubs",
        own_filter=False,
        remarks={
            "receiver over a restart": "told at once that a session has ended, the library closes its connection: "
            "the program opens another, here and wherever that happens"
        },
        without=_WITHOUT_OF_EVENT_HUBS,
    ),
)
"""In the order in which they are tried. The first is the observer: it shows annotations."""
