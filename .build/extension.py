"""
Hatchling's build hook: compiles the C extension that has the engine's loops.

Into a wheel; or into the tree, where the install is editable. A machine that cannot compile it gets a wheel without it:
the gateway then runs the same loops in Python, and says so. ``$REWIND_NATIVE`` says what is wanted, as it does to a
gateway: ``1`` makes a build fail that cannot compile, ``0`` leaves the extension out.

``python .build/extension.py`` compiles it into the tree.
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

MODULE = "gateway.amqp.engine._transfers"
SOURCE = Path(*MODULE.split(".")).with_suffix(".c")
STABLE = not sysconfig.get_config_var("Py_GIL_DISABLED")
"""Whether one library serves every Python: the stable ABI has no word yet on those without the interpreter's lock."""

BUILT = SOURCE.with_suffix(".abi3.so" if STABLE else sysconfig.get_config_var("EXT_SUFFIX"))
OLDEST = (3, 11)
"""The Python whose stable ABI it is, as ``requires-python`` has it."""

OPTIONS = ("-std=c11", "-O2", "-Wall", "-Wextra", "-fvisibility=hidden")
"""For the compiler, behind those that Python itself was compiled with; ``$CFLAGS`` has more."""

FAILURES = (BaseError, CCompilerError)
"""There is no compiler, or no header of Python's; or it is not C."""


def compile_to(folder: str) -> Path:
    """Compiles the extension, with all that comes of it in one folder; says where. Raises ``FAILURES``."""
    limited = [("Py_LIMITED_API", f"0x{OLDEST[0]:02x}{OLDEST[1]:02x}0000")] if STABLE else []
    extension = Extension(
        MODULE,
        [str(SOURCE)],
        define_macros=limited,
        extra_compile_args=list(OPTIONS),
        py_limited_api=STABLE,
    )
    command = Distribution({"ext_modules": [extension]}).get_command_obj("build_ext")
    command.build_lib = folder
    command.build_temp = os.path.join(folder, "objects")
    command.ensure_finalized()
    command.run()
    return Path(folder, BUILT)


def platform_of(library: Path) -> str:
    """
    The platform of a wheel with this library, as PEP 600 names those of glibc: it needs nothing but that, from the
    version on whose symbols it asks for.
    """
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    glibc = [int(minor) for minor in re.findall(rb"GLIBC_2\.(\d+)", library.read_bytes())]
    return re.sub("^linux", f"manylinux_2_{max(17, *glibc)}", platform) if glibc else platform


def compile_in_place() -> None:
    """
    Compiles the extension into the tree, where a process may have it loaded, and another may compile it as well.

    Raises ``FAILURES``, and then there is none: one from before may be older than what calls it.
    """
    build = ROOT / "build"
    build.mkdir(exist_ok=True)
    for other in set((ROOT / SOURCE).parent.glob(f"{SOURCE.stem}.*.so")) - {ROOT / BUILT}:
        other.unlink(missing_ok=True)  # made for one Python, which would take it first
    with TemporaryDirectory(prefix="extension-", dir=build) as folder:
        try:
            # On the same disk, so that half a file is never seen.
            compile_to(folder).replace(ROOT / BUILT)
        except FAILURES:
            (ROOT / BUILT).unlink(missing_ok=True)
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
        except FAILURES as error:
            if wanted == "1":
                raise
            self.app.display_warning(f"{MODULE} is not compiled, its loops run in Python, slower: {error}")
            return
        build_data["force_include"][str(built)] = str(BUILT)
        build_data["pure_python"] = False
        if STABLE:
            build_data["tag"] = f"cp{OLDEST[0]}{OLDEST[1]}-abi3-{platform_of(built)}"
        else:
            build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Leaves nothing behind."""
        self._folder.cleanup()


if __name__ == "__main__":
    os.chdir(ROOT)
    try:
        compile_in_place()
    except FAILURES as error:
        sys.exit(f"{SOURCE}: {error}")
