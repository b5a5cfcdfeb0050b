"""A vendor is named in its own folders, and where those are composed, and nowhere else in the code."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("amqp_ext", "gateway", "spark_bridge", "store")

VENDORS = re.compile(r"rabbit|event[ _-]?hub|microsoft|servicebus|azure", re.IGNORECASE)

OWN_FOLDERS = ("amqp_ext/rabbitmq/", "amqp_ext/event_hubs/", "gateway/amqp/dialects/")
COMPOSED_IN = ("amqp_ext/vendor_forms.py",)

NAME_ON_THE_WIRE = re.compile(r"^\S+$|\b[\w.-]+:[\w-]+")
"""A text without a space, or a symbol with its domain inside a text. Sentences may say whose clients they are about."""

SWITCHES = frozenset({"rabbitmq_mode", "event_hubs_mode"})
"""What a listener is to speak, as its settings name it."""


def names_in(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Every name in a module, and every text that could be one on the wire, with their lines."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                yield node.lineno, name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name
            case ast.keyword(arg=str(name)):
                yield node.lineno, name
            case ast.ImportFrom(module=str(module)):
                yield node.lineno, module
                yield from ((node.lineno, alias.name) for alias in node.names)
            case ast.Import():
                yield from ((node.lineno, alias.name) for alias in node.names)
            case ast.Constant(value=str(text)):
                yield from ((node.lineno, word) for word in NAME_ON_THE_WIRE.findall(text))


@pytest.mark.parametrize("package", PACKAGES)
def test_a_vendor_is_named_in_its_folders_alone(package: str) -> None:
    """Identifiers, names on the wire and texts outside a vendor's folders are the field's, or ours."""
    found = []
    for path in sorted((ROOT / package).rglob("*.py")):
        where = path.relative_to(ROOT).as_posix()
        if where.startswith(OWN_FOLDERS) or where in COMPOSED_IN:
            continue
        found += [
            f"{where}:{line}: {name}"
            for line, name in names_in(ast.parse(path.read_text()))
            if name not in SWITCHES and VENDORS.search(name)
        ]
    assert found == []
