"""The settings as pydantic sees them: the reader that checks them, and what it knows of each key."""

import ast
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from gateway.config.settings import Settings

READER = TypeAdapter(Settings)


@cache
def _schema() -> dict[str, Any]:
    """Made when it is asked for: a gateway whose settings are right has no use for it."""
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

    pydantic can read them, too, and does when the reader is made: with each start of a gateway, which needs none.
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
    """The keys of the table at ``place``, inside which a step is a key or an index."""
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
