"""
Hatchling's build hook: compiles the C extension that has the engine's loops.

Into a wheel; or into the tree, where the install is editable. A machine that cannot compile it gets a wheel without it:
the gateway then runs the same loops in Python, and says so. ``$REWIND_NATIVE`` says what is wanted, as it does to a
gateway: ``1`` makes a build fail that cannot compile, ``0`` leaves the extension out.

``python .build/extension.py`` compiles it into the tree.
"""

import os
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
BUILT = SOURCE.with_suffix(sysconfig.get_config_var("EXT_SUFFIX"))
"""Its name says for which Python: those of several may lie side by side."""

OPTIONS = ("-std=c11", "-O2", "-Wall", "-Wextra", "-fvisibility=hidden")
"""For the compiler, behind those that Python itself was compiled with; ``$CFLAGS`` has more."""

FAILURES = (BaseError, CCompilerError)
"""There is no compiler, or no header of Python's; or it is not C."""


def compile_to(folder: str) -> Path:
    """Compiles the extension, with all that comes of it in one folder; says where. Raises ``FAILURES``."""
    extension = Extension(MODULE, [str(SOURCE)], extra_compile_args=list(OPTIONS))
    command = Distribution({"ext_modules": [extension]}).get_command_obj("build_ext")
    command.build_lib = folder
    command.build_temp = os.path.join(folder, "objects")
    command.ensure_finalized()
    command.run()
    return Path(folder, BUILT)


def compile_in_place() -> None:
    """
    Compiles the extension into the tree, where a process may have it loaded, and another may compile it as well.

    Raises ``FAILURES``, and then there is none: one from before may be older than what calls it.
    """
    build = ROOT / "build"
    build.mkdir(exist_ok=True)
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
