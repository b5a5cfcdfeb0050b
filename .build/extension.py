"""
Hatchling's build hook: compiles the modules in C, such as the engine's loops.

They are compiled into a wheel, or, for an editable install, into the tree. A machine that cannot compile them builds a
wheel without them: the gateway then runs the same loops in Python, and says so. ``$REWIND_NATIVE`` decides, as it does
for a gateway: ``1`` makes a build fail that cannot compile, ``0`` leaves the extensions out.

``python .build/extension.py`` compiles them into the tree.
"""

import os
import re
import sys
import sysconfig
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from setuptools import Distribution, Extension
from setuptools.errors import BaseError, CCompilerError

ROOT = Path(__file__).parent.parent

MODULES = ("amqp_ext.message._fronts", "gateway.amqp.engine._transfers", "gateway.core._id_set")
STABLE = not sysconfig.get_config_var("Py_GIL_DISABLED")
"""Whether one library serves every Python: there is no stable ABI yet for Pythons without the interpreter's lock."""

SUFFIX = ".abi3.so" if STABLE else sysconfig.get_config_var("EXT_SUFFIX")
OLDEST = (3, 11)
"""The oldest Python of the stable ABI, as in ``requires-python``."""

OPTIONS = ("-std=c11", "-O2", "-Wall", "-Wextra", "-fvisibility=hidden")
"""For the compiler, after the options that Python itself was compiled with; ``$CFLAGS`` adds more."""

FAILURES = (BaseError, CCompilerError)
"""Raised where there is no compiler, or no header of Python's, or where the source is not valid C."""


def source_of(module: str) -> Path:
    """The source of a module, below the root."""
    return Path(*module.split(".")).with_suffix(".c")


def compile_to(folder: str) -> list[Path]:
    """Compiles all modules into a folder, at the paths that they have below the root. Raises ``FAILURES``."""
    limited = [("Py_LIMITED_API", f"0x{OLDEST[0]:02x}{OLDEST[1]:02x}0000")] if STABLE else []
    extensions = [
        Extension(
            module,
            [str(source_of(module))],
            define_macros=limited,
            extra_compile_args=list(OPTIONS),
            py_limited_api=STABLE,
        )
        for module in MODULES
    ]
    command = Distribution({"ext_modules": extensions}).get_command_obj("build_ext")
    command.build_lib = folder
    command.build_temp = os.path.join(folder, "objects")
    command.ensure_finalized()
    command.run()
    return [source_of(module).with_suffix(SUFFIX) for module in MODULES]


def platform_of(libraries: list[Path]) -> str:
    """
    The platform of a wheel with these libraries, in the words of PEP 600: they need glibc alone, in the version of the
    newest symbol that they use, or later.
    """
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    code = b"".join(library.read_bytes() for library in libraries)
    glibc = [int(minor) for minor in re.findall(rb"GLIBC_2\.(\d+)", code)]
    return re.sub("^linux", f"manylinux_2_{max(17, *glibc)}", platform) if glibc else platform


def compile_in_place() -> None:
    """
    Compiles all modules into the tree, where one process may have them loaded, and another may compile them, too.

    Raises ``FAILURES``, and then removes the libraries: those from before may be older than the code that calls them.
    """
    build = ROOT / "build"
    build.mkdir(exist_ok=True)
    sources = [ROOT / source_of(module) for module in MODULES]
    for source in sources:
        for other in set(source.parent.glob(f"{source.stem}.*.so")) - {source.with_suffix(SUFFIX)}:
            other.unlink(missing_ok=True)  # compiled for one version of Python, which would prefer it
    with TemporaryDirectory(prefix="extension-", dir=build) as folder:
        try:
            for built in compile_to(folder):
                # Both are on the same disk, so that nobody ever sees half a file.
                Path(folder, built).replace(ROOT / built)
        except FAILURES:
            for source in sources:
                source.with_suffix(SUFFIX).unlink(missing_ok=True)
            raise


class ExtensionHook(BuildHookInterface[Any]):
    """Called by Hatchling for each wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compiles before the wheel's files are collected; ``version`` is ``editable`` or ``standard``."""
        os.chdir(self.root)
        self._folder = TemporaryDirectory(prefix="rewind-extension-")
        wanted = os.environ.get("REWIND_NATIVE")
        if wanted == "0":
            return
        try:
            if version == "editable":
                compile_in_place()
                return
            built = compile_to(self._folder.name)
            libraries = [Path(self._folder.name, library) for library in built]
        except FAILURES as error:
            if wanted == "1":
                raise
            self.app.display_warning(
                f"{' and '.join(MODULES)} are not compiled, what they do runs in Python, slower: {error}"
            )
            return
        for library, place in zip(libraries, built, strict=True):
            build_data["force_include"][str(library)] = str(place)
        build_data["pure_python"] = False
        if STABLE:
            build_data["tag"] = f"cp{OLDEST[0]}{OLDEST[1]}-abi3-{platform_of(libraries)}"
        else:
            build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Removes the folder in which it compiled."""
        self._folder.cleanup()


if __name__ == "__main__":
    os.chdir(ROOT)
    try:
        compile_in_place()
    except FAILURES as error:
        sys.exit(f"{' and '.join(str(source_of(module)) for module in MODULES)}: {error}")
