"""What came out: client × behaviour, as a table on the terminal, as JSON and as interop/README.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from interop.client import Client, Line

MARKS = {"pass": "✓", "fail": "✗", "cannot": "–"}


@dataclass(frozen=True, slots=True)
class Result:
    """One behaviour with one client."""

    client: str
    behaviour: str
    status: str
    """``pass``; ``fail``; ``cannot``, where the client's API has no way to ask for it."""
    note: str = ""
    seconds: float = 0.0
    seen: dict[str, Line] = field(default_factory=dict)
    """Refusal to the error as the client's user saw it."""


def as_json(results: Sequence[Result]) -> list[dict[str, Any]]:
    """The results for other programs."""
    return [asdict(result) for result in results]


def summary(results: Sequence[Result]) -> str:
    """One line for each client."""
    lines = []
    for name in dict.fromkeys(result.client for result in results):
        of_client = [result.status for result in results if result.client == name]
        counts = ", ".join(f"{of_client.count(status)} {status}" for status in MARKS if status in of_client)
        lines.append(f"{name:<18} {counts}")
    return "\n".join(lines)


def readme(
    clients: Sequence[Client], results: Sequence[Result], tables: Mapping[str, Mapping[str, str]]
) -> str:
    """
    The text of interop/README.md: the matrix, a note on whatever is no plain pass, and what users see.

    Args:
        tables: By dialect, and by the empty text for all clients: behaviours and what each is in a sentence.
    """
    found = {(result.client, result.behaviour): result for result in results}
    notes: list[str] = []

    def cell(client: Client, behaviour: str) -> str:
        result = found[client.name, behaviour]
        if not result.note:
            return MARKS[result.status]
        text = f"{client.name}, {behaviour}: {result.note}"
        if text not in notes:
            notes.append(text)
        return f"{MARKS[result.status]} <sup>{notes.index(text) + 1}</sup>"

    lines = [
        "# Foreign clients",
        "",
        "Written by `./run interop`, which starts a gateway process for each client and has clients that nobody here",
        "wrote do the same things, each through a small program with one command line (`interop/client.py`).",
        "`./run interop CLIENT...` tries some of them and leaves this file alone; `--json` prints what came out.",
        "",
        "✓ as it should be; ✗ not; – the library's API has no way to ask for it. Numbers point to the notes.",
        "",
        *_row("client", "library", "language"),
        *_row(*["---"] * 3),
    ]
    lines += [line for client in clients for line in _row(client.name, client.library, client.language)]
    for dialect, behaviours in tables.items():
        tried = [client for client in clients if dialect in ("", client.dialect)]
        lines += ["", *_row("behaviour", *[client.name for client in tried])]
        lines += _row("---", *[":-:"] * len(tried))
        for behaviour in behaviours:
            lines += _row(behaviour, *[cell(client, behaviour) for client in tried])
    lines += ["", "## Notes", ""]
    lines += [f"{number}. {_plain(note)}" for number, note in enumerate(notes, start=1)] or ["None."]
    lines += ["", "## What was tried", ""]
    for behaviours in tables.values():
        lines += [f"- **{name}** – {text}" for name, text in behaviours.items()]
    lines += ["", "## Refusals, as the client's user sees them", ""]
    for what in dict.fromkeys(what for result in results for what in result.seen):
        lines += [f"**{what}**", ""]
        for client in clients:
            for result in results:
                if result.client == client.name and what in result.seen:
                    lines.append(
                        f"- {client.name}: `{result.seen[what]['kind']}`{_condition(result.seen[what])}"
                    )
                    lines.append(f"  {_plain(result.seen[what]['text'])}")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _row(*cells: str) -> list[str]:
    return [f"| {' | '.join(cells)} |"]


def _condition(error: Line) -> str:
    return f", condition `{error['condition']}`:" if error.get("condition") else ", no condition of its own:"


def _plain(text: str) -> str:
    """Text as it is, where Markdown would take it for marks."""
    return " ".join(text.split()).replace("<", "&lt;").replace("|", "\\|").replace("*", "\\*")
