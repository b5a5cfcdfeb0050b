"""
What the import contracts cannot say: no package imports what pyproject.toml does not ask for, no modules import each
other in a circle, folders and files stay as small as a reader can hold, and modules are deep: much behind a small door.
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
"""What may import the libraries of an extra."""

# Distributions whose modules are not simply called as they are.
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
"""Methods that do nothing but call another with the arguments they were given."""

MOST_WITH_MANY_PARAMETERS = 10
"""Functions with more than seven parameters."""

MOST_FILES_OF_A_WALK = 11
"""Files that a message or a replay passes through, by docs/contributing/walks.md."""


def modules_of(requirements: Iterable[str]) -> set[str]:
    """The top-level modules that these requirements bring, from the names at their beginnings."""
    names = [re.split(r"[^\w.-]", requirement)[0].replace("-", "_") for requirement in requirements]
    return set().union(*(MODULES.get(name, {name}) for name in names))


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    """All that a module consists of, parsed once."""
    return list(ast.walk(ast.parse(path.read_text())))


def imports_of(package: str) -> Iterator[tuple[str, str]]:
    """Where an absolute import stands, and the top-level module it names, for all of a package."""
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
    """The project's modules that one imports, for types or not; a package is no circle with its own modules."""
    found: set[str] = set()
    for node in nodes_of(modules[module]):
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


def classes_and_functions() -> Iterator[tuple[str, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]]:
    """All of the product, each with where it stands."""
    for path in project_modules().values():
        for node in nodes_of(path):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{path.relative_to(ROOT)}:{node.lineno}", node


def is_small_protocol(node: ast.AST) -> bool:
    """With one implementation and one or two methods, the class itself or a plain callable says the same."""
    return (
        isinstance(node, ast.ClassDef)
        and any(ast.unparse(base).split("[")[0].endswith("Protocol") for base in node.bases)
        and sum(isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef) for member in node.body) <= 2
    )


def passes_on(node: ast.AST) -> bool:
    """A caller is given the component that does the work; what is left are doors that a protocol asks for."""
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
    """They say that a noun is missing."""
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
    """Much behind a small door: what is not is listed, once there is too much of it."""
    found = [where for where, node in classes_and_functions() if is_shallow(node)]
    assert len(found) <= most, "\n".join(found)


def test_a_walk_leads_through_few_files() -> None:
    """What happens to a message is understood in one sitting."""
    page = (ROOT / "docs" / "contributing" / "walks.md").read_text()
    walks = {
        walk.partition("\n")[0]: set(re.findall(r"`([\w/]+\.(?:py|c))`", walk))
        for walk in re.split(r"^## ", page, flags=re.MULTILINE)[1:]
    }
    assert {"A publish", "A delivery", "A replay"} <= walks.keys()
    assert {name: files for name, files in walks.items() if len(files) > MOST_FILES_OF_A_WALK} == {}


# --- A vendor is named in its own folders, and where those are composed, and nowhere else in the code -----------------

VENDORS = re.compile(r"rabbit|event[ _-]?hub|microsoft|servicebus|azure", re.IGNORECASE)

OWN_FOLDERS = ("amqp_ext/rabbitmq/", "amqp_ext/event_hubs/", "gateway/amqp/dialects/")
COMPOSED_IN = ("amqp_ext/vendor_forms.py",)

NAME_ON_THE_WIRE = re.compile(r"^\S+$|\b[\w.-]+:[\w-]+")
"""A text without a space, or a symbol with its domain inside a text. Sentences may say whose clients they are about."""

SWITCHES = frozenset({"rabbitmq_mode", "event_hubs_mode"})
"""What a listener is to speak, as its settings name it."""


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
    """Identifiers, names on the wire and texts outside a vendor's folders are the field's, or ours."""
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
