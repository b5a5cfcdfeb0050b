"""What the import contracts cannot say: no package imports what pyproject.toml does not ask for."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PACKAGES = ("amqp_ext", "gateway", "spark_bridge", "store")
WITH_SPARK = ("spark_bridge/", "store/archive/")
"""What may import the libraries of the extra `spark`."""

# Distributions whose modules are not simply called as they are.
MODULES = {
    "pydantic": {"pydantic", "pydantic_core"},
    "python_qpid_proton": {"proton", "cproton", "cproton_ffi"},
}


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
    extra = modules_of(PROJECT["optional-dependencies"]["spark"])
    imports = list(imports_of(package))
    assert imports, f"{package} has no imports: is it still there?"
    undeclared = [(where, module) for where, module in imports if module not in allowed]
    assert [
        (where, module)
        for where, module in undeclared
        if module not in extra or not where.startswith(WITH_SPARK)
    ] == []
