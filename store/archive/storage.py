"""
Where an archive's files are stored: a folder of this host, or a URI of any file system that pyarrow has. The table's
log is written by ``deltalake``, which gets the same place in its own notation.

Invariant: under its name, a file exists completely or not at all. Once ``publish`` or ``put`` has returned, it survives
a power cut (on an object store: as far as the store promises that).
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qs, urlsplit, urlunsplit

import pyarrow as pa
from pyarrow import fs

from store.archive.errors import ArchiveError, ConnectionFailed

Step: TypeAlias = Callable[[str], None]
TEMPORARY: Final = ".tmp"

LOG: Final = "_delta_log"

_OPTIONS: Final = {
    "region": "AWS_REGION",
    "access_key": "AWS_ACCESS_KEY_ID",
    "secret_key": "AWS_SECRET_ACCESS_KEY",
}


def no_step(_name: str) -> None:
    """Does nothing between two steps; tests end the process there."""


def storage_at(where: str, step: Step = no_step) -> ArchiveStorage:
    """
    The storage for a folder's name or a URI.

    Raises:
        ConnectionFailed: pyarrow does not know such a place.
    """
    if "://" not in where:
        return FolderStorage(Path(where), step)
    try:
        system, path = fs.FileSystem.from_uri(where)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ConnectionFailed(
            f"{where} is not a place for an archive: pyarrow does not know it: {error}"
        ) from error
    if isinstance(system, fs.LocalFileSystem):
        return FolderStorage(Path(path), step)
    return ArchiveStorage(where, system, path, step)


class ArchiveStorage:
    """
    A folder of files by name, in one of pyarrow's file systems, such as ``s3://bucket/folder``. A name may contain one
    ``/``.

    Attributes:
        where: The place as a person wrote it.
        uri: The place as ``deltalake`` takes it, with ``options``.
        step: Called between the steps of making something durable.
    """

    def __init__(self, where: str, system: fs.FileSystem, path: str, step: Step = no_step) -> None:
        self.where = where
        self.uri, self.options = _for_table(where)
        self._system = system
        self._path = path.rstrip("/")
        self.step = step

    def publish(self, write: Callable[[Any], None], named: Callable[[Any], str]) -> tuple[str, int]:
        """
        Create a file with what ``write`` writes into a stream.

        Args:
            named: Returns the file's name; its argument is a stream to read what was written.

        Returns:
            The file's name, and its size in bytes.
        """
        with self._told(), tempfile.TemporaryFile() as file:
            write(file)
            self.step("written")
            size, name = file.tell(), named(file)
            file.seek(0)
            with self._system.open_output_stream(self._at(name)) as stream:
                shutil.copyfileobj(file, stream, 1 << 20)
        self.step("published")
        return name, size

    def put(self, name: str, content: bytes) -> None:
        """Create a small file; replace a file of that name."""
        with self._told(), self._system.open_output_stream(self._at(name)) as stream:
            stream.write(content)

    def sync_commits(self, first: int, last: int) -> None:
        """Return when these commits of the table survive a power cut. Object stores have already seen to that."""

    def read(self, name: str) -> bytes | None:
        """A small file's content; None if there is no such file."""
        try:
            with self._told(), self._system.open_input_stream(self._at(name)) as file:
                return bytes(file.read())
        except FileNotFoundError:
            return None

    def open(self, name: str) -> Any:
        """
        Open a file for random access, as pyarrow takes it.

        Raises:
            FileNotFoundError: There is no such file.
        """
        return self._system.open_input_file(self._at(name))

    def names(self, folder: str = "") -> list[str]:
        """The names of the files in a folder, sorted, without the folder's name."""
        with self._told():
            selector = fs.FileSelector(self._at(folder).rstrip("/"), allow_not_found=True)
            found = self._system.get_file_info(selector)
        return sorted(info.base_name for info in found if info.type == fs.FileType.File)

    def remove(self, name: str) -> None:
        """Delete a file; it is no error if there is none."""
        with suppress(FileNotFoundError), self._told():
            self._system.delete_file(self._at(name))

    def _at(self, name: str) -> str:
        return f"{self._path}/{name}"

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except (OSError, pa.ArrowException) as error:
            raise ArchiveError(f"The archive {self.where} cannot be used: {error}") from error


class FolderStorage(ArchiveStorage):
    """A folder of this host. Everything written here has to be synced."""

    def __init__(self, folder: Path, step: Step = no_step) -> None:
        super().__init__(str(folder), fs.LocalFileSystem(), str(folder.absolute()), step)
        self._folder = folder.absolute()

    def publish(self, write: Callable[[Any], None], named: Callable[[Any], str]) -> tuple[str, int]:
        with self._told():
            self._folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self._folder, suffix=TEMPORARY) as file:
                write(file)
                self.step("written")
                _sync_file(file)
                self.step("synced")
                size, name = file.tell(), named(file)
                os.link(file.name, self._folder / name)
                self.step("linked")
            _sync_folder(self._folder)
        self.step("published")
        return name, size

    def put(self, name: str, content: bytes) -> None:
        path = self._folder / name
        temporary = path.with_name(path.name + TEMPORARY)
        with self._told():
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(temporary, "wb") as file:
                file.write(content)
                _sync_file(file)
            os.replace(temporary, path)
            _sync_folder(path.parent)

    def sync_commits(self, first: int, last: int) -> None:
        with self._told():
            for number in range(first, last + 1):
                # A checkpoint may have replaced an old commit, which is then deleted.
                with (
                    suppress(FileNotFoundError),
                    open(self._folder / LOG / f"{number:020}.json", "rb") as file,
                ):
                    os.fsync(file.fileno())
            _sync_folder(self._folder / LOG)
            _sync_folder(self._folder)


def _for_table(where: str) -> tuple[str, dict[str, str] | None]:
    """A URI of pyarrow's in ``deltalake``'s notation. ``deltalake`` takes all else from the environment."""
    parts = urlsplit(where)
    if not parts.scheme:
        return str(Path(where).absolute()), None
    said = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    options = {theirs: said[ours] for ours, theirs in _OPTIONS.items() if ours in said}
    if parts.username and parts.password:
        options |= {"AWS_ACCESS_KEY_ID": parts.username, "AWS_SECRET_ACCESS_KEY": parts.password}
    if "endpoint_override" in said:
        scheme = said.get("scheme", "https")
        endpoint = said["endpoint_override"]
        options["AWS_ENDPOINT_URL"] = endpoint if "://" in endpoint else f"{scheme}://{endpoint}"
        options["AWS_ALLOW_HTTP"] = str(scheme == "http").lower()
    if parts.scheme == "s3":
        options["AWS_CONDITIONAL_PUT"] = "etag"  # gives each commit number to one writer only
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", "")), options


def _sync_file(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
