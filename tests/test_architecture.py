"""
What the import contracts cannot say: no package imports what pyproject.toml does not ask for, no modules import each
other in a circle, and folders and files stay as small as a reader can hold.
"""

import ast
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PACKAGES = ("amqp_ext", "gateway", "spark_bridge", "store")
WITH_EXTRA = {
    "spark": ("spark_bridge/", "store/archive/"),
    "postgresql": ("spark_bridge/", "store/postgresql/"),
    "telemetry": ("gateway/otlp.py",),
}
"""What may import the libraries of an extra."""

# Distributions whose modules are not simply called as they are.
MODULES = {
    "opentelemetry_sdk": {"opentelemetry"},
    "opentelemetry_exporter_otlp_proto_http": {"opentelemetry"},
    "pydantic": {"pydantic", "pydantic_core"},
    "python_qpid_proton": {"proton", "cproton", "cproton_ffi"},
}


MOST_MODULES = 20
"""Modules in one folder."""

MOST_LINES = 900
"""Lines in one file."""


def modules_of(requirements: Iterable[str]) -> set[str]:
    """The top-level modules that these requirements bring, from the names at their beginnings."""
    names = [re.split(r"[^\w.-]", requirement)[0].replace("-", "_") for requirement in requirements]
    return set().union(*(MODULES.get(name, {name}) for name in names))


def imports_of(package: str) -> Iterator[tuple[str, str]]:
    """Where an absolute import stands, and the top-level module it names, for all of a package."""
    for path in sorted((ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            where = f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.Import):
                yield from ((where, alias.name.split(".")[0]) for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                yield where, node.module.split(".")[0]


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_are_declared(package: str) -> None:
    """A package imports the standard library, its siblings and what pyproject.toml asks for by name."""
    allowed = {*PACKAGES, *sys.stdlib_module_names} | modules_of(PROJECT["dependencies"])
    extras = {
        module: places
        for name, places in WITH_EXTRA.items()
        for module in modules_of(PROJECT["optional-dependencies"][name])
    }
    imports = list(imports_of(package))
    assert imports, f"{package} has no imports: is it still there?"
    undeclared = [(where, module) for where, module in imports if module not in allowed]
    assert [
        (where, module) for where, module in undeclared if not where.startswith(extras.get(module, ()))
    ] == []


def project_modules() -> dict[str, Path]:
    """The modules of all packages by dotted name."""
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in paths
    }


def imported_modules(module: str, modules: dict[str, Path]) -> set[str]:
    """The project's modules that one imports, for types or not; a package is no circle with its own modules."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(modules[module].read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return {name for name in found & modules.keys() - {module} if not name.startswith(f"{module}.")}


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports under ``TYPE_CHECKING`` count: what is needed is said by a narrow protocol below."""
    modules = project_modules()
    graph = {module: imported_modules(module, modules) for module in modules}
    assert sum(map(len, graph.values())) > len(modules), "modules import each other"
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def test_a_folder_has_no_more_modules_than_a_reader_can_hold() -> None:
    """A folder that is full asks what second noun lives in it."""
    folders: dict[Path, int] = {}
    for path in project_modules().values():
        folders[path.parent] = folders.get(path.parent, 0) + (path.name != "__init__.py")
    assert {str(f.relative_to(ROOT)): count for f, count in folders.items() if count > MOST_MODULES} == {}


def test_no_file_is_longer_than_a_reader_can_hold() -> None:
    """Tests and foreign clients' programs in Python are held to it, too."""
    paths = [
        *project_modules().values(),
        *(path for folder in ("tests", "docs") for path in (ROOT / folder).rglob("*.py")),
        *(ROOT / "interop").glob("*.py"),
        *(ROOT / "interop" / "clients").glob("*/*.py"),
    ]
    lines = {str(path.relative_to(ROOT)): path.read_text().count("\n") for path in paths}
    assert {name: count for name, count in lines.items() if count > MOST_LINES} == {}
