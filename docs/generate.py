"""
What the reference says because the code says it: tables and lists between marks in the pages of this folder.

A page holds ``<!-- generated: NAME -->`` and ``<!-- end -->``; what stands between them is written by the function
of that name below. Without arguments this program says which pages are not what the code gives (exit status 1);
``--write`` writes them. Words that no code has (what a log event means, say) are in ``wording.toml`` beside this
file, and an entry that is missing or too many is an error.
"""

from __future__ import annotations

import argparse
import ast
import copy
import json
import re
import subprocess
import sys
import tempfile
import textwrap
import tomllib
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

import click

from amqp_ext.addresses.address import OPTIONS
from amqp_ext.replay_start import StartKind
from gateway.admin.application import rights_needed
from gateway.admin.semp.endpoints import SETTING_ATTRIBUTES
from gateway.cli import main as rewind
from gateway.config.settings import (
    AlarmThresholds,
    IdentityProvider,
    Limits,
    Store,
    Telemetry,
    Tls,
    User,
    WebSocket,
)
from gateway.config.toml import commented_toml, settings_of
from gateway.config.vpn import QUEUE_KEYS, ArchivedLog, Queue, ReplayTarget, Retention, VpnStore
from gateway.core.errors import ErrorCode
from gateway.core.permissions import Action
from gateway.core.replay.states import state_diagram
from spark_bridge.options import MEANINGS

DOCS: Final = Path(__file__).resolve().parent
ROOT: Final = DOCS.parent
PACKAGES: Final = ("amqp_ext", "gateway", "store", "spark_bridge", "interop", "tests")

_FREE_PORTS: Final = ("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
_MARKED: Final = re.compile(r"(<!-- generated: ([\w-]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
_LOGGED: Final = {"debug", "info", "warning", "error", "exception", "log_event", "warn", "report", "say"}
"""Methods whose first argument is the name of a log event."""


# ------------------------------------------------------------------------------------------------- Markdown


def table(heads: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A table; what could end a cell is escaped."""
    heads = list(heads)
    lines = [heads, ["---"] * len(heads), *([_cell(value) for value in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: object) -> str:
    return " ".join(str(value).split()).replace("|", "\\|")


def code(value: object) -> str:
    """Text as code; nothing for nothing."""
    return f"`{value}`" if value not in (None, "") else "–"


@cache
def _wording() -> dict[str, dict[str, str]]:
    return tomllib.loads((DOCS / "wording.toml").read_text(encoding="utf-8"))


def words(subject: str, names: Iterable[str]) -> Mapping[str, str]:
    """What ``wording.toml`` says about each of these, and about nothing else."""
    said, names = _wording()[subject], set(names)
    if said.keys() != names:
        raise SystemExit(
            f"docs/wording.toml, [{subject}]: missing {sorted(names - said.keys())}, "
            f"too many {sorted(said.keys() - names)}"
        )
    return said


# ---------------------------------------------------------------------------------------- the running gateway


@cache
def _answers() -> tuple[str, dict[str, Any]]:
    """What a gateway that has done a little of everything says of itself: its metrics, and its OpenAPI document."""
    with gateway() as (amqp, admin):
        _rewind(["send", "orders", "--url", amqp, "--quiet"], text="1\n")
        _rewind(["replay", "start", "orders", "--admin", admin])
        _rewind(["tail", "nowhere?create=never", "--url", amqp], status=1)
        with urllib.request.urlopen(f"{admin}/metrics") as metrics:
            scraped = metrics.read().decode()
        with urllib.request.urlopen(f"{admin}/openapi.json") as document:
            return scraped, json.load(document)


@contextmanager
def gateway() -> Iterator[tuple[str, str]]:
    """A gateway in a temporary folder: its address for AMQP, and that of its administration."""
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [sys.executable, "-m", "gateway", "serve", "--data", folder, *_FREE_PORTS],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=ROOT,
        )
        try:
            assert process.stdout is not None
            ready = json.loads(process.stdout.readline())
            yield ready["amqp"][0], ready["admin"]
        finally:
            process.terminate()
            process.communicate()


def _rewind(arguments: list[str], *, text: str = "", status: int = 0) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "gateway", *arguments],
        input=text,
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert ran.returncode == status, ran.stderr


# ------------------------------------------------------------------------------------------ what is generated


_SAMPLES: Final[Mapping[str, object]] = {
    "tls": Tls(certificate=Path("server.pem"), key=Path("server.key"), client_ca=Path("clients.pem")),
    "websocket": WebSocket(origins=("https://console.example.com",)),
    "users": {
        "ann": User(
            password="scram$...",  # no hashes, or a copy of the example would let someone in
            token="sha256$...",
            publish=("topic://flights/>", "!topic://flights/test/>", "queue://orders"),
            consume=("queue://orders*", "topic://flights/>", "log://flights/>"),
            browse=("queue://>",),
            replay=("queue://orders",),
            administer=("queue://orders*",),
        ),
        "bob": User(
            password_file=Path("bob.hash"),
            token_file=Path("bob.token.hash"),
            sas_key_file=Path("bob.key"),
            certificate_names=("bob.example.com",),
        ),
    },
    "identity_providers": (
        IdentityProvider(
            issuer="https://sso.example.com/realms/main",
            audience="rewind",
            jwks_url="https://sso.example.com/realms/main/protocol/openid-connect/certs",
            rights_claim="realm_access.roles",
            client_id="rewind-console",
            client_secret_file=Path("console.secret"),
            console_url="https://console.example.com",
        ),
        IdentityProvider(issuer="https://login.example.com", audience="rewind", jwks_file=Path("keys.json")),
    ),
    "store": VpnStore(
        url="postgresql://a.example.com,b.example.com/rewind?target_session_attrs=read-write",
        password_file=Path("postgresql.password"),
        read_url="postgresql://a.example.com,b.example.com/rewind?target_session_attrs=prefer-standby",
        advertise="rewind-1.example.com:5672",
    ),
    "telemetry": Telemetry(
        endpoint="http://127.0.0.1:4318/v1/traces", headers_file=Path("collector.headers")
    ),
    "archive": ArchivedLog(place="/srv/archive", to="/srv/archive"),
    "retention": (
        Retention(topics=("orders/>", "!orders/test/>"), max_age_hours=2_160),
        Retention(topics=("debug/>",), max_age_hours=24, quota_mb=500),
    ),
    "replay_targets": {
        "test": ReplayTarget(
            url="amqps://test.example.com:5671",
            vpn="default",
            user="copier",
            password_file=Path("copier.password"),
            tls_ca=Path("authorities.pem"),
        )
    },
    "queues": {
        "orders": Queue(  # type: ignore[call-arg]  # has a key for each setting of an endpoint
            exclusive="wait", subscriptions=("orders/>", "!orders/test/>")
        )
    },
}


def example_toml() -> str:
    """Every setting with its default and the reason for it, and samples of what has no default."""
    return commented_toml(_SAMPLES)


def configuration() -> str:
    """The same, on a page."""
    return f"```toml\n{example_toml()}```"


def limits() -> str:
    """The bounds of the whole gateway."""
    return _settings(Limits)


def store() -> str:
    """How the files are written."""
    return _settings(Store)


def alarms() -> str:
    """When an alarm is raised."""
    return _settings(AlarmThresholds)


def queue_settings() -> str:
    """What can be said of a queue, in the configuration and over HTTP."""
    attributes = {attribute.setting.name: attribute.name for attribute in SETTING_ATTRIBUTES}
    names = {key.key: attributes[key.setting.name] for key in QUEUE_KEYS} | {"kind": "kind"}
    return _settings(Queue, names)


def _settings(kind: type, attributes: Mapping[str, str] | None = None) -> str:
    values = kind()
    rows = [
        (code(key), code(_toml(getattr(values, attribute))), description, code((attributes or {}).get(key)))
        for attribute, key, description in settings_of(kind)
    ]
    heads = ("Setting", "Default", "What it says, and why", "Over HTTP")
    return table(heads, rows) if attributes else table(heads[:3], (row[:3] for row in rows))


def _toml(value: object) -> str:
    return json.dumps(list(value) if isinstance(value, tuple) else value)


def address_options() -> str:
    """What may stand behind the ``?`` of an address."""
    said = words("address_options", OPTIONS)
    return table(
        ("Option", "Values", "What it does"),
        (
            (code(name), ", ".join(map(code, values)) or "text", said[name])
            for name, values in OPTIONS.items()
        ),
    )


def start_kinds() -> str:
    """Every kind of start, in each of its forms."""
    said = _wording_of_starts()
    return table(
        ("Start", "As text", "In the map", "Begins"),
        (
            (kind.value, code(said[kind]["text"]), code(said[kind]["map"]), said[kind]["begins"])
            for kind in StartKind
        ),
    )


def _wording_of_starts() -> Mapping[StartKind, Mapping[str, str]]:
    said: Any = words("starts", (kind.value for kind in StartKind))
    return {kind: said[kind.value] for kind in StartKind}


def refusals() -> str:
    """Every error that a peer can be told, replay's own first."""
    return table(
        ("When", "Condition", "`rewind:replay-error`", "`subcode`"),
        (
            (error.case, code(error.condition), code(error.replay_error), error.subcode or "–")
            for error in sorted(ErrorCode, key=lambda error: error.subcode is None)
        ),
    )


def permissions() -> str:
    """What can be permitted."""
    said = words("permissions", (action.value for action in Action))
    return table(("List", "Permits"), ((code(action.value), said[action.value]) for action in Action))


def annotations() -> str:
    """Every annotation and link property that the gateway gives or reads, as the code spells them."""
    return _named("annotations", re.compile(r"x-opt-[a-z-]+|x-stream-offset"))


def own_names() -> str:
    """Every name of our own domain on the wire."""
    return _named("own_names", re.compile(r"rewind:[a-z][a-z-]+"))


def _named(subject: str, form: re.Pattern[str]) -> str:
    found = {text for text in _texts("amqp_ext", "gateway") if form.fullmatch(text)}
    said: Any = words(subject, found)
    return table(
        ("Name", "Type", "What it says"), ((code(n), said[n]["type"], said[n]["says"]) for n in said)
    )


def log_events() -> str:
    """Every line that the gateway's log can have."""
    found = set()
    for path, tree in _trees("gateway"):
        if path.is_relative_to(ROOT / "gateway" / "cli"):
            continue  # speaks to a terminal
        for call in ast.walk(tree):
            match call:
                case ast.Call(func=ast.Attribute(attr=method), args=[event, *_]):
                    for text in ast.walk(event):
                        if isinstance(text, ast.Constant) and isinstance(text.value, str):
                            is_logged = method.lstrip("_") in _LOGGED and re.fullmatch(
                                r"[a-z]+(_[a-z]+)*", text.value
                            )
                            if is_logged or text.value in _wording()["log_events"]:
                                found.add(text.value)
    said = words("log_events", found)
    return table(("Event", "What happened"), ((code(event), said[event]) for event in sorted(found)))


def log_keys() -> str:
    """Every key that a line of the gateway's log can have."""
    lines = (ROOT / "gateway" / "logging" / "log_keys.py").read_text(encoding="utf-8").splitlines()
    keys = [found for line in lines if (found := re.match(r'[A-Z_]+: Final = "(\w+)"(?:  # (.+))?', line))]
    plain = ", ".join(code(key[1]) for key in keys if not key[2])
    explained = table(("Key", "What it is"), ((code(key[1]), key[2]) for key in keys if key[2]))
    return f"{plain}; and these, whose names do not say all:\n\n{explained}"


def metrics() -> str:
    """Every metric, from a scrape."""
    types = dict(re.findall(r"^# TYPE (rewind_\w+) (\w+)$", _answers()[0], re.MULTILINE))
    texts = dict(re.findall(r"^# HELP (rewind_\w+) (.+)$", _answers()[0], re.MULTILINE))
    labels: dict[str, str] = {}
    for name, found in re.findall(r"^(rewind_\w+)(?:\{(.*)\})? ", _answers()[0], re.MULTILINE):
        family = re.sub(r"_(bucket|count|sum)$", "", name) if name not in types else name
        labels[family] = ", ".join(code(label) for label in re.findall(r'(\w+)="', found) if label != "le")
    names = [name for name in types if not name.endswith("_created")]
    return table(
        ("Metric", "Type", "Labels", "What it says"),
        ((code(name), types[name], labels.get(name) or "–", texts[name]) for name in sorted(names)),
    )


def http() -> str:
    """Every request of the administration, and what a user's ``administer`` rules have to cover for it."""
    paths, needed = _answers()[1]["paths"], rights_needed()
    rows = [
        (method.upper(), path, operation["summary"])
        for path, operations in paths.items()
        for method, operation in operations.items()
    ]
    parts = {"config": "Configuration", "action": "Actions", "monitor": "Monitoring", "": "Beside SEMP"}
    found: dict[str, list[tuple[str, str, str]]] = {part: [] for part in parts}
    for method, path, summary in sorted(rows, key=lambda row: row[1]):
        part, _, rest = path.removeprefix("/SEMP/v2/").partition("/")
        is_semp = path.startswith("/SEMP/v2/")
        found[part if is_semp else ""].append((method, rest if is_semp else path, summary))
    texts = []
    for part, title in parts.items():
        below = f"Below `/SEMP/v2/{part}/`:\n\n" if part else ""
        prefix = f"/SEMP/v2/{part}/" if part else ""
        listed = table(
            ("Method", "Path", "What it does", "Needs"),
            (
                (m, code(p), s, right.demands if (right := needed.get((m, prefix + p))) else "–")
                for m, p, s in found[part]
            ),
        )
        texts.append(f"### {title}\n\n{below}{listed}")
    return "\n\n".join(texts)


def http_attributes() -> str:
    """The attributes of queues, as the OpenAPI document has them."""
    schemas = _answers()[1]["components"]["schemas"]
    rows = [
        (code(name), _type_of(schema), schema.get("description", "–"))
        for name, schema in schemas["NewQueue"]["properties"].items()
    ]
    return table(("Attribute", "Type", "What it says"), rows)


def _type_of(schema: Mapping[str, Any]) -> str:
    kinds = [part for part in schema.get("anyOf", [schema]) if part.get("type") != "null"]
    found = []
    for kind in kinds:
        values = kind.get("enum") or ([kind["const"]] if "const" in kind else [])
        found.append(", ".join(code(_toml(value).strip('"')) for value in values) or kind.get("type", "–"))
    return " or ".join(found)


def command_line() -> str:
    """Every verb of ``rewind``, as its ``--help`` says; options that many have stand once, at the end."""
    verbs = list(_verbs(rewind, ("rewind",)))
    texts = []
    for names, command in verbs:
        shared, note = _shared(command)
        texts.append(
            f"### {' '.join(names)}\n\n```text\n{_help(names, command, without=shared)}\n```\n\n{note}"
        )
    for title, example in (("AMQP clients", "send"), ("administration", "status")):
        command = _verb(rewind, example)
        own = {parameter.name for parameter in command.params} - _shared(command)[0]
        options = _help(("rewind",), command, without={name for name in own if name}).partition("Options:\n")[
            2
        ]
        texts.append(f"## Options of {title}\n\n```text\n{textwrap.dedent(options)}\n```")
    return "\n\n".join(text.strip() for text in texts)


def _verbs(command: click.Command, names: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    if not isinstance(command, click.Group) or command.invoke_without_command:
        yield names, command
    if isinstance(command, click.Group):
        for name in sorted(command.list_commands(click.Context(command))):
            yield from _verbs(_verb(command, name), (*names, name))


def _verb(group: click.Group, name: str) -> click.Command:
    found = group.get_command(click.Context(group), name)
    assert found is not None, name
    return found


_OF_CLIENTS: Final = frozenset({"url", "vpn", "user", "password_file", "tls_ca", "tls_cert", "tls_key"})
_OF_ADMINISTRATION: Final = _OF_CLIENTS | {"token_file", "as_json"}


def _shared(command: click.Command) -> tuple[frozenset[str], str]:
    """The options of a verb that many have, and where they are described."""
    names = {parameter.name for parameter in command.params}
    if "token_file" in names:
        return _OF_ADMINISTRATION, "Also: the [options of administration](#options-of-administration)."
    if "url" in names:
        return _OF_CLIENTS, "Also: the [options of AMQP clients](#options-of-amqp-clients)."
    return frozenset(), ""


def _help(names: tuple[str, ...], command: click.Command, *, without: Iterable[str]) -> str:
    left_out = {*without, "help"}
    shown = copy.copy(command)
    shown.params = [parameter for parameter in command.params if parameter.name not in left_out]
    shown.add_help_option = False
    context = click.Context(shown, info_name=" ".join(names), max_content_width=100, terminal_width=100)
    return shown.get_help(context).removeprefix("Usage: ")


def spark_options() -> str:
    """The options of the Spark source."""
    return table(("Option", "Meaning"), ((code(name), meaning) for name, meaning in MEANINGS.items()))


def spark_columns() -> str:
    """The columns of the Spark source, read and not imported: neither Spark nor Arrow need be there."""
    columns = next(
        ast.literal_eval(node.value)
        for _, tree in _trees("spark_bridge", "store")
        for node in tree.body
        if isinstance(node, ast.AnnAssign) and node.value and ast.unparse(node.target) == "COLUMNS"
    )
    said = words("spark_columns", columns)
    return table(
        ("Column", "Type", "What it is"), ((code(n), code(kind), said[n]) for n, kind in columns.items())
    )


def replay_states() -> str:
    """The diagram of a replay's states."""
    return f"```mermaid\n{state_diagram()}\n```"


def map_of_the_house() -> str:
    """Every folder of code with the first sentence of its docstring."""
    rows = []
    for package in PACKAGES:
        for path in _sources(package, "__init__.py"):
            docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
            if docstring is not None:
                rows.append((code(f"{path.parent.relative_to(ROOT)}/"), _first_sentence(docstring)))
    return table(("Folder", "What is in it"), rows)


def unit() -> str:
    """The Debian package's unit for systemd."""
    text = (ROOT / ".package/debian/rewind.service").read_text(encoding="utf-8")
    return f"<!-- not run: a unit file of systemd -->\n```ini\n{text}```"


def _sources(package: str, name: str) -> list[Path]:
    """Files of ours: clients that are tried have environments of their own beside them."""
    return sorted(path for path in (ROOT / package).rglob(name) if "site-packages" not in path.parts)


def _first_sentence(docstring: str) -> str:
    sentence = re.split(r"(?<=[.!?])\s", docstring.strip().partition("\n\n")[0], maxsplit=1)[0]
    return " ".join(sentence.replace("``", "`").split()).rstrip(":")


def _trees(*packages: str) -> Iterator[tuple[Path, ast.Module]]:
    for package in packages:
        for path in _sources(package, "*.py"):
            yield path, ast.parse(path.read_text(encoding="utf-8"))


def _texts(*packages: str) -> Iterator[str]:
    for _, tree in _trees(*packages):
        yield from (
            n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)
        )


# -------------------------------------------------------------------------------------------------- the pages

GENERATED: Final[Mapping[str, Callable[[], str]]] = {
    function.__name__.replace("_", "-"): function
    for function in (
        address_options,
        alarms,
        annotations,
        command_line,
        configuration,
        http,
        http_attributes,
        limits,
        log_events,
        log_keys,
        map_of_the_house,
        metrics,
        own_names,
        permissions,
        queue_settings,
        refusals,
        replay_states,
        spark_columns,
        spark_options,
        start_kinds,
        store,
        unit,
    )
}


def rendered(page: str) -> str:
    """The text of a page with everything between marks as the code gives it."""
    return _MARKED.sub(lambda found: f"{found[1]}\n{GENERATED[found[2]]()}\n\n{found[4]}", page)


def pages() -> list[Path]:
    """The pages that hold something generated."""
    return [page for page in sorted(DOCS.rglob("*.md")) if _MARKED.search(page.read_text(encoding="utf-8"))]


def main() -> int:
    """Say which pages are not what the code gives, or write them."""
    parser = argparse.ArgumentParser(description="What the reference says because the code says it.")
    parser.add_argument("--write", action="store_true", help="write the pages")
    write = parser.parse_args().write
    stale = [
        page
        for page in pages()
        if page.read_text(encoding="utf-8") != rendered(page.read_text(encoding="utf-8"))
    ]
    for page in stale:
        if write:
            page.write_text(rendered(page.read_text(encoding="utf-8")), encoding="utf-8")
        print(
            page.relative_to(ROOT), "written" if write else "is not what the code gives: ./run docs --write"
        )
    return int(bool(stale) and not write)


if __name__ == "__main__":
    sys.exit(main())
