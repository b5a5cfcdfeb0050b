"""
What the import contracts cannot say: packages import only what pyproject.toml declares, modules do not import each
other in circles, folders and files stay small enough for a reader, and modules are deep: much behind a small interface.
"""

import ast
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator
from functools import cache
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
    "oauth": ("gateway/identity_providers.py",),
}
"""The packages that may import the libraries of an extra."""

# Distributions whose modules have other names than the distribution.
MODULES = {
    "opentelemetry_sdk": {"opentelemetry"},
    "opentelemetry_exporter_otlp_proto_http": {"opentelemetry"},
    "pydantic": {"pydantic", "pydantic_core"},
    "pyjwt": {"jwt"},
    "python_qpid_proton": {"proton", "cproton", "cproton_ffi"},
}


MOST_MODULES = 20
"""Modules in one folder."""

MOST_LINES = 900
"""Lines in one file."""

MOST_SMALL_PROTOCOLS = 20
"""Protocols with one or two methods."""

MOST_THAT_PASS_ON = 25
"""Methods that only call another method with their own arguments."""

MOST_WITH_MANY_PARAMETERS = 10
"""Functions with more than seven parameters."""

MOST_FILES_OF_A_WALK = 11
"""The most files that a message or a replay passes through, according to docs/contributing/walks.md."""


def modules_of(requirements: Iterable[str]) -> set[str]:
    """The top-level modules of these requirements, from the distribution name at the beginning of each."""
    names = [re.split(r"[^\w.-]", requirement)[0].replace("-", "_") for requirement in requirements]
    return set().union(*(MODULES.get(name, {name}) for name in names))


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    """All AST nodes of a module; each file is parsed once."""
    return list(ast.walk(ast.parse(path.read_text())))


def imports_of(package: str) -> Iterator[tuple[str, str]]:
    """The absolute imports of a package: the place of each, and the top-level module that it names."""
    for path in sorted((ROOT / package).rglob("*.py")):
        for node in nodes_of(path):
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
    """The project's modules that a module imports, also for types only; its own package does not count as a circle."""
    found: set[str] = set()
    for node in nodes_of(modules[module]):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return {name for name in found & modules.keys() - {module} if not name.startswith(f"{module}.")}


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports under ``TYPE_CHECKING`` count: a lower module names its needs in a narrow protocol instead."""
    modules = project_modules()
    graph = {module: imported_modules(module, modules) for module in modules}
    assert sum(map(len, graph.values())) > len(modules), "modules import each other"
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def test_a_folder_has_no_more_modules_than_a_reader_can_hold() -> None:
    """A full folder probably mixes two subjects."""
    folders: dict[Path, int] = {}
    for path in project_modules().values():
        folders[path.parent] = folders.get(path.parent, 0) + (path.name != "__init__.py")
    assert {str(f.relative_to(ROOT)): count for f, count in folders.items() if count > MOST_MODULES} == {}


def test_no_file_is_longer_than_a_reader_can_hold() -> None:
    """Tests and the Python programs of foreign clients count, too."""
    paths = [
        *project_modules().values(),
        *(path for folder in ("tests", "docs") for path in (ROOT / folder).rglob("*.py")),
        *(ROOT / "interop").glob("*.py"),
        *(ROOT / "interop" / "clients").glob("*/*.py"),
    ]
    lines = {str(path.relative_to(ROOT)): path.read_text().count("\n") for path in paths}
    assert {name: count for name, count in lines.items() if count > MOST_LINES} == {}


def classes_and_functions() -> Iterator[tuple[str, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]]:
    """All classes and functions of the product, each with its place."""
    for path in project_modules().values():
        for node in nodes_of(path):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{path.relative_to(ROOT)}:{node.lineno}", node


def is_small_protocol(node: ast.AST) -> bool:
    """A protocol with one implementation and one or two methods: the class itself or a plain callable would do."""
    return (
        isinstance(node, ast.ClassDef)
        and any(ast.unparse(base).split("[")[0].endswith("Protocol") for base in node.bases)
        and sum(isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef) for member in node.body) <= 2
    )


def passes_on(node: ast.AST) -> bool:
    """
    A method that only passes on: the caller should get the component itself, unless a protocol requires the method.
    """
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    body = node.body[1:] if ast.get_docstring(node) else node.body
    call = body[0].value if len(body) == 1 and isinstance(body[0], ast.Return | ast.Expr) else None
    return (
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and ast.unparse(call.func).startswith("self.")
        and [argument.arg for argument in node.args.args[1:]] == [ast.unparse(given) for given in call.args]
    )


def has_many_parameters(node: ast.AST) -> bool:
    """Many parameters show that a noun is missing."""
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    return len({a.arg for a in (*node.args.args, *node.args.kwonlyargs)} - {"self", "cls"}) > 7


@pytest.mark.parametrize(
    ("is_shallow", "most"),
    [
        (is_small_protocol, MOST_SMALL_PROTOCOLS),
        (passes_on, MOST_THAT_PASS_ON),
        (has_many_parameters, MOST_WITH_MANY_PARAMETERS),
    ],
)
def test_few_doors_are_shallow(is_shallow: Callable[[ast.AST], bool], most: int) -> None:
    """Few small protocols, methods that pass on and long parameter lists; they are listed if there are too many."""
    found = [where for where, node in classes_and_functions() if is_shallow(node)]
    assert len(found) <= most, "\n".join(found)


def test_a_walk_leads_through_few_files() -> None:
    """The path of a message can be understood in one sitting."""
    page = (ROOT / "docs" / "contributing" / "walks.md").read_text()
    walks = {
        walk.partition("\n")[0]: set(re.findall(r"`([\w/]+\.(?:py|c))`", walk))
        for walk in re.split(r"^## ", page, flags=re.MULTILINE)[1:]
    }
    assert {"A publish", "A delivery", "A replay"} <= walks.keys()
    assert {name: files for name, files in walks.items() if len(files) > MOST_FILES_OF_A_WALK} == {}


# --- A vendor is named only in its own folders and where these are composed -------------------------------------------

VENDORS = re.compile(r"rabbit|event[ _-]?hub|microsoft|servicebus|azure", re.IGNORECASE)

OWN_FOLDERS = ("amqp_ext/rabbitmq/", "amqp_ext/event_hubs/", "gateway/amqp/dialects/")
COMPOSED_IN = ("amqp_ext/vendor_forms.py",)

NAME_ON_THE_WIRE = re.compile(r"^\S+$|\b[\w.-]+:[\w-]+")
"""A text without a space, or a symbol with its domain within a text. A sentence may name the vendor of a client."""

SWITCHES = frozenset({"rabbitmq_mode", "event_hubs_mode"})
"""A listener's settings for the dialects."""


def names_in(path: Path) -> Iterator[tuple[int, str]]:
    """Every name in a module, and every text that could be one on the wire, with their lines."""
    for node in nodes_of(path):
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
    """Outside a vendor's folders, identifiers, names on the wire and texts use the field's words or ours."""
    found = []
    for path in sorted((ROOT / package).rglob("*.py")):
        where = path.relative_to(ROOT).as_posix()
        if where.startswith(OWN_FOLDERS) or where in COMPOSED_IN:
            continue
        found += [
            f"{where}:{line}: {name}"
            for line, name in names_in(path)
            if name not in SWITCHES and VENDORS.search(name)
        ]
    assert found == []
