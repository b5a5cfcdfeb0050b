"""
The manual page ``rewind(1)`` and the shells' completions, generated from the command line.

``python manual.py FOLDER DATE`` writes ``rewind.1`` and ``rewind.bash``, ``_rewind``, ``rewind.fish``, for the Rewind
that Python imports first.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import click
from click.shell_completion import get_completion_class

COMPLETIONS = {"bash": "rewind.bash", "zsh": "_rewind", "fish": "rewind.fish"}

TAIL = r""".SH EXIT STATUS
0: done. 1: refused, or no gateway. 2: wrong usage or configuration.
.SH ENVIRONMENT
Options of many verbs can be set once: REWIND_URL, REWIND_ADMIN, REWIND_VPN, REWIND_USER, REWIND_PASSWORD_FILE,
REWIND_PASSWORD, REWIND_TOKEN_FILE, REWIND_TOKEN, REWIND_TLS_CA.
.SH FILES
.TP
.I /etc/rewind/rewind.toml
The settings of the gateway that rewind.service runs.
.TP
.I /var/lib/rewind
Its data.
.SH SEE ALSO
.BR systemctl (1),
.BR journalctl (1)
"""


def main() -> None:
    """Writes the files."""
    folder, date = Path(sys.argv[1]), sys.argv[2]
    command: click.Group = import_module("gateway.cli").main
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rewind.1").write_text("\n".join(page(command, date)) + "\n" + TAIL)
    for shell, name in COMPLETIONS.items():
        kind = get_completion_class(shell)
        assert kind is not None
        made = kind(command, {}, "rewind", "_REWIND_COMPLETE")
        (folder / name).write_text(made.source_template % made.source_vars())


def page(command: click.Group, date: str) -> Iterator[str]:
    """The lines of the page, up to its last sections."""
    yield f'.TH REWIND 1 "{date}" "Rewind" "User Commands"'
    yield from (".SH NAME", rf"rewind \- {plain(command.help or '').split(', ')[-1].rstrip('.')}")
    yield from (".SH SYNOPSIS", r".B rewind", r"[\fIoption\fR] \fIverb\fR [\fIoption\fR] [\fIargument\fR]")
    yield ".SH OPTIONS"
    yield from options(command, set())
    everywhere = {name for parameter in command.params for name in parameter.opts}
    yield ".SH VERBS"
    for name, verb in verbs(command, "rewind"):
        pieces = [piece for piece in verb.collect_usage_pieces(click.Context(verb)) if piece != "[OPTIONS]"]
        yield f".SS {plain(' '.join([name, *pieces]))}"
        for paragraph in (verb.help or "").split("\n\n"):
            if paragraph.startswith("\b"):  # click's mark of lines that stay as they are
                yield from (".nf", *map(plain, paragraph.strip("\b\n").splitlines()), ".fi", ".PP")
            else:
                yield from (plain(" ".join(paragraph.split())), ".PP")
        yield from options(verb, everywhere)


def verbs(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    """All verbs, each with the words that are typed for it."""
    if not isinstance(command, click.Group) or command.invoke_without_command:
        yield name, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for word in sorted(command.list_commands(context)):
            found = command.get_command(context, word)
            assert found is not None
            yield from verbs(found, f"{name} {word}")


def options(command: click.Command, known: set[str]) -> Iterator[str]:
    """A verb's own options, without those that all verbs have."""
    for parameter in command.get_params(click.Context(command)):
        if not isinstance(parameter, click.Option) or parameter.hidden or known & set(parameter.opts):
            continue
        record = parameter.get_help_record(click.Context(command))
        if record is not None and "--help" not in parameter.opts:
            yield from (".TP", rf"\fB{plain(record[0])}\fR", plain(record[1]))


def plain(text: str) -> str:
    """A text with roff's own characters escaped."""
    text = text.replace("\\", r"\e").replace("-", r"\-").replace("\n", " ")
    return rf"\&{text}" if text.startswith((".", "'")) else text


if __name__ == "__main__":
    main()
