"""The page about foreign clients, interop/README.md: failures, refusals as users see them, the matrix, and surprises.

The page says once what is true of every client, and does not explain what is expected: a reader looks for exceptions.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from interop.client import Client, Line
from interop.matrix import MARKS, Result

MOST_CHARACTERS = 260
"""Characters of an error's text that are shown: some libraries add the state of their connection."""


def page(clients: Sequence[Client], results: Sequence[Result], tables: Mapping[str, Sequence[str]]) -> str:
    """
    The text of interop/README.md.

    Args:
        clients: All that were tried.
        results: Every behaviour with every client that tried it.
        tables: Behaviours by the dialect whose clients try them; under the empty text, those for all clients.
    """
    found = {(result.client, result.behaviour): result for result in results}
    refusals = _refusals(results)
    lines = [
        "# Foreign clients",
        "",
        "Other projects' AMQP clients are tried against a gateway. Each runs the same scenarios, through a small",
        "program with one command line ([client.py](client.py)), on a gateway process of its own. `./run interop`",
        "tries all clients and writes this page; `./run interop CLIENT...` tries some and does not; `--json` prints",
        "the results.",
        "Each behaviour in the tables below is a function that describes it: [for all clients](scenarios.py),",
        "[for RabbitMQ's](rabbitmq_scenarios.py), [for Event Hubs'](event_hubs_scenarios.py).",
        "",
        *_failures(results),
        "",
        "## What a user sees when refused",
        "",
        *_row("client", "library", "language", "the error", "AMQP's condition"),
        *_row(*["---"] * 5),
    ]
    for client in clients:
        kinds, condition = _error_of(client, refusals)
        lines += _row(client.name, _plain(client.library), client.language, kinds, condition)
    lines += [
        "",
        "The error's text holds the gateway's words:",
        "",
        *_row("refusal", "condition", "the gateway's words"),
        *_row(*["---"] * 3),
    ]
    others: list[str] = []
    for what, errors in refusals.items():
        by = _plainest(errors)
        words = errors[by]["text"]
        lines += _row(what, _code(_condition(errors)), _cut(words.replace(f"-{by}", "")))
        others += [
            f"- {what}, {name}: {_cut(error['text'])}"
            for name, error in errors.items()
            if _alike(words, by) not in _alike(error["text"], name)
        ]
    if others:
        lines += ["", "These say something else instead:", "", *others]
    lines += ["", "## Who does what", ""]
    lines.append("✓ works; ✗ fails; – the library's API cannot ask for it. Numbers point to the notes.")
    notes = _Notes(_expected(clients, results))
    for dialect, behaviours in tables.items():
        tried = [client for client in clients if dialect in ("", client.dialect)]
        lines += ["", *_table([client.name for client in tried], behaviours, found, notes)]
    lines += ["", "## Notes", "", *(notes.lines() or ["None."])]
    return "\n".join(lines) + "\n"


class _Notes:
    """Numbered notes, each text once, with the clients it is about."""

    def __init__(self, expected: set[tuple[str, str]]) -> None:
        self._expected = expected
        self._clients: dict[str, list[str]] = {}

    def number(self, result: Result) -> int:
        """The number of a result's note; 0 where it has none, or where it is expected."""
        if not result.note or (
            result.status == "cannot" and (result.client, result.behaviour) in self._expected
        ):
            return 0
        about = self._clients.setdefault(result.note, [])
        if result.client not in about:
            about.append(result.client)
        return list(self._clients).index(result.note) + 1

    def lines(self) -> list[str]:
        """The list of notes."""
        return [
            f"{number}. {', '.join(about)}: {_plain(text)}"
            for number, (text, about) in enumerate(self._clients.items(), start=1)
        ]


def _failures(results: Sequence[Result]) -> list[str]:
    counts = Counter(result.status for result in results)
    clients = len({result.client for result in results})
    rest = f"{counts['pass']} trials passed with {clients} clients; in {counts['cannot']} the library has no way to ask"
    failed: dict[tuple[str, str], list[str]] = {}
    for result in results:
        if result.status == "fail":
            failed.setdefault((result.client, result.note), []).append(result.behaviour)
    if not failed:
        return [f"**Nothing failed**: {rest}."]
    lines = [f"- {client}, {', '.join(whats)}: {_plain(note)}" for (client, note), whats in failed.items()]
    return [f"**{counts['fail']} failed**; {rest}:", "", *lines]


def _table(
    names: Sequence[str], behaviours: Sequence[str], found: Mapping[tuple[str, str], Result], notes: _Notes
) -> list[str]:
    """A matrix, without clients that can ask for none of its behaviours, and behaviours that are ✓ throughout."""
    absent = [name for name in names if all(found[name, each].status == "cannot" for each in behaviours)]
    shown = [name for name in names if name not in absent]
    throughout, rows = [], []
    for behaviour in behaviours:
        cells = []
        for name in shown:
            number = notes.number(found[name, behaviour])
            cells.append(MARKS[found[name, behaviour].status] + (f" <sup>{number}</sup>" if number else ""))
        if set(cells) == {MARKS["pass"]}:
            throughout.append(behaviour)
        else:
            rows += _row(behaviour, *cells)
    lines = (
        [f"As it should be with each of {len(shown)} clients: {', '.join(throughout)}."] if throughout else []
    )
    if absent:
        lines.append(f"Left out, as their APIs can ask for none of it: {', '.join(absent)}.")
    return [*lines, "", *_row("behaviour", *shown), *_row("---", *[":-:"] * len(shown)), *rows]


def _expected(clients: Sequence[Client], results: Sequence[Result]) -> set[tuple[str, str]]:
    """Behaviours that none of a dialect's clients can ask for: they are not part of the dialect, which is expected."""
    by_dialect: dict[str, list[str]] = {}
    for client in clients:
        by_dialect.setdefault(client.dialect, []).append(client.name)
    without = {(result.client, result.behaviour) for result in results if result.status == "cannot"}
    return {
        (name, behaviour)
        for name, behaviour in without
        for dialect, names in by_dialect.items()
        if dialect and name in names and all((other, behaviour) in without for other in names)
    }


def _refusals(results: Iterable[Result]) -> dict[str, dict[str, Line]]:
    """By refusal and client: the error that the client's user saw."""
    refusals: dict[str, dict[str, Line]] = {}
    for result in results:
        for what, error in result.seen.items():
            refusals.setdefault(what, {})[result.client] = error
    return refusals


def _error_of(client: Client, refusals: Mapping[str, Mapping[str, Line]]) -> tuple[str, str]:
    """What errors a client's users get, and how they show AMQP's condition."""
    errors = {what: errors[client.name] for what, errors in refusals.items() if client.name in errors}
    kinds = ", ".join(_code(kind) for kind in dict.fromkeys(error["kind"] for error in errors.values()))
    ways: dict[str, list[str]] = {}
    for what, error in errors.items():
        if condition := _condition(refusals[what]):
            ways.setdefault(_way_to_show(condition, error), []).append(what)
    if len(ways) == 1:
        return kinds, next(iter(ways))
    usual = max(ways, key=lambda way: len(ways[way]), default="")
    rest = [f"{way}: {', '.join(whats)}" for way, whats in ways.items() if way != usual]
    return kinds, "; ".join([usual, *rest])


def _way_to_show(condition: str, error: Line) -> str:
    shown, text = error.get("condition"), error["text"]
    if shown:
        return "in a field" if shown == condition else "in a field, by the library's own name"
    if condition in text:
        return "in the text"
    name = condition.removeprefix("amqp:").replace(":", "").replace("-", "")
    return "in the text, by the library's own name" if name in text.lower() else "not shown"


def _condition(errors: Mapping[str, Line]) -> str:
    """AMQP's condition of a refusal, as most clients show it; empty where it has none."""
    shown = Counter(error["condition"] for error in errors.values() if ":" in (error.get("condition") or ""))
    return str(shown.most_common(1)[0][0]) if shown else ""


def _plainest(errors: Mapping[str, Line]) -> str:
    """The client whose text most others contain: it shows the gateway's words, to which the others add their own."""
    alike = {name: _alike(error["text"], name) for name, error in errors.items()}
    return max(
        alike, key=lambda name: (sum(alike[name] in other for other in alike.values()), len(alike[name]))
    )


def _alike(text: str, client: str) -> str:
    """A text without what differs from client to client and from run to run: names and numbers."""
    unquoted = text.replace('\\"', '"').replace("\\'", "'").replace(client, "")
    return re.sub(r"\d+", "0", " ".join(unquoted.split()))


def _row(*cells: str) -> list[str]:
    return [f"| {' | '.join(cells)} |"]


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _cut(text: str) -> str:
    whole = " ".join(text.split())
    return _plain(whole if len(whole) <= MOST_CHARACTERS else f"{whole[:MOST_CHARACTERS]}…")


def _plain(text: str) -> str:
    """A text with Markdown's own characters escaped."""
    return " ".join(text.split()).replace("<", "&lt;").replace("|", "\\|").replace("*", "\\*")
