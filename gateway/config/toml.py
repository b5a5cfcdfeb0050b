"""
Settings as TOML 1.0: values and dotted paths, the keys of each table, the commented example, the settings in effect.

In the example, prose lines begin with ``# ``. Settings that have no default to show (a user, a queue, TLS) are samples
after a ``#`` without a blank, so that removing those marks gives a configuration that can be read, too.
"""

import ast
import inspect
import json
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from inspect import getdoc
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

from pydantic import TypeAdapter

from gateway.config.settings import Settings
from gateway.config.vpn import masked


def literal(value: object) -> str:
    """One value of a setting (bool, int, float, str, Path or a tuple of them) on one line."""
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            # Without an exponent a whole number stays a number with a point, as it was read.
            return repr(value)
        case str() | Path():
            # JSON's escapes are TOML's, but TOML wants DEL escaped too.
            return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
        case tuple():
            return "[" + ", ".join(literal(item) for item in value) + "]"
        case _:
            raise TypeError(f"{value!r} cannot be written into a configuration")


def key(name: str) -> str:
    """``name`` as a key: bare if it can be, else quoted."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else literal(name)


def dotted(steps: Iterable[str | int]) -> str:
    """The path of a setting, such as ``listener[0].port`` or ``vpn.default.queue."a/b".quota_mb``."""
    path = ""
    for step in steps:
        path += f"[{step}]" if isinstance(step, int) else f".{key(step)}"
    return path.removeprefix(".")


READER = TypeAdapter(Settings)


@cache
def _schema() -> dict[str, Any]:
    """Made when it is asked for: a gateway whose settings are valid does not need it."""
    return READER.json_schema(by_alias=True)


class TableKey(NamedTuple):
    """One field of a settings class: its attribute, its key in the file, its description."""

    attribute: str
    key: str
    description: str


def settings_of(kind: type) -> list[TableKey]:
    """The settings of one class of the tree, in their order."""
    table = _schema() if kind is Settings else _schema()["$defs"][kind.__name__]
    descriptions = _descriptions(kind)
    return [
        TableKey(field.name, key, descriptions.get(field.name) or schema.get("description", ""))
        for field, (key, schema) in zip(fields(kind), table["properties"].items(), strict=True)
    ]


@cache
def _descriptions(kind: type) -> dict[str, str]:
    """
    The docstrings below the fields of a class, by attribute; none where its source is not there.

    pydantic could read them, too, but would at each start of a gateway, which does not need them.
    """
    try:
        source = inspect.getsource(kind)
    except OSError:
        return {}
    (definition,) = ast.parse(textwrap.dedent(source)).body
    assert isinstance(definition, ast.ClassDef)
    found = {}
    for line, below in pairwise(definition.body):
        match line, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                found[name] = inspect.cleandoc(text)
    return found


def keys_at(place: tuple[int | str, ...]) -> Iterator[str]:
    """The keys of the table at ``place``, whose steps are keys and indexes."""
    node = _schema()
    for step in (*place, None):
        for option in node.get("anyOf", ()):  # a table that may be absent
            node = option if "$ref" in option else node
        if "$ref" in node:
            node = _schema()["$defs"][node["$ref"].rpartition("/")[2]]
        if step is None:
            yield from node["properties"]
        elif isinstance(step, int):
            node = node["items"]
        else:
            node = node["properties"][step] if "properties" in node else node["additionalProperties"]


_WIDTH = 100
SECRETS: Final = frozenset({"password", "token"})
"""Keys of settings that are never shown."""


def commented_toml(samples: Mapping[str, object]) -> str:
    """
    Every setting with its default and the reason for it; reading it gives ``Settings()``.

    Args:
        samples: Samples of settings that have no default to show, by attribute.
    """
    style = _Style(samples=samples)
    return "\n".join([*style.prose(getdoc(Settings) or ""), "", *_lines(Settings(), (), style)])


def effective_toml(settings: Settings, *, show_secrets: bool = False) -> str:
    """All of ``settings``, without comments; password hashes and the passwords of URLs only if ``show_secrets``,
    and only then can it be read back."""
    hidden = frozenset() if show_secrets else SECRETS
    return "\n".join(_lines(settings, (), _Style(hidden=hidden))) + "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Style:
    """How to render: with prose where there are samples, and without the values of hidden settings."""

    samples: Mapping[str, object] = field(default_factory=dict)
    hidden: frozenset[str] = frozenset()
    told: set[str] = field(default_factory=set)

    def prose(self, text: str) -> list[str]:
        """``text`` as comment lines, once; a second listener or user needs no second explanation."""
        if not self.samples or text in self.told:
            return []
        self.told.add(text)
        return [f"# {line}" for line in textwrap.wrap(text, _WIDTH)]


def _lines(value: Any, path: tuple[str, ...], style: _Style) -> Iterator[str]:
    """The lines of one table: its own settings, then the tables within it."""
    tables: list[Iterator[str]] = []
    for attribute, name, description in settings_of(type(value)):
        item = getattr(value, attribute)
        place = (*path, name)
        if not item and attribute in style.samples:
            tables.append(_commented_out(_tables(style.samples[attribute], place, style)))
        elif holds_tables(item):
            tables.append(_tables(item, place, style))
        elif name in style.hidden and item is not None:
            yield f"# {name} is not shown"
        elif item is not None:
            yield from style.prose(description)
            text = literal(item)
            yield f"{name} = {masked(text) if style.hidden else text}"
            if style.samples:
                yield ""
    for lines in tables:
        yield from lines


def holds_tables(item: object) -> bool:
    if isinstance(item, tuple):
        return any(map(is_dataclass, item))
    return isinstance(item, dict) or is_dataclass(item)


def _tables(item: object, path: tuple[str, ...], style: _Style) -> Iterator[str]:
    """A table, an array of tables, or a table of named tables, each under its header."""
    match item:
        case dict():
            for name, table in item.items():
                yield from _tables(table, (*path, name), style)
        case tuple():
            for table in item:
                yield from _headed(f"[[{dotted(path)}]]", table, path, style)
        case _:
            yield from _headed(f"[{dotted(path)}]", item, path, style)


def _headed(header: str, table: object, path: tuple[str, ...], style: _Style) -> Iterator[str]:
    if not style.samples:
        yield ""
    yield from style.prose(getdoc(type(table)) or "")
    yield header
    yield from _lines(table, path, style)


def _commented_out(lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        yield line if not line or line.startswith("# ") else f"#{line}"
