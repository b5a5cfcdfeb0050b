"""
Where an archive's files lie: a folder of this host, or any place that pyarrow's file systems take as a URI.

Invariant: a file is seen under its name whole or not at all, and once ``publish`` or ``create`` has returned, it
survives a power cut (on a store: as far as the store promises). ``create`` gives a name to one writer only; object
stores cannot do that through pyarrow, so there one process alone may write to an archive.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import pyarrow as pa
from pyarrow import fs

from store.archive.errors import ArchiveError, ConnectionFailed

Step: TypeAlias = Callable[[str], None]
TEMPORARY = ".tmp"
_PUT_IS_ATOMIC = {"s3", "gcs", "abfs"}  # types of stores where an object appears when its stream is closed


def no_step(_name: str) -> None:
    """Called between the steps of making something durable; tests end the process there."""


class ArchiveStorage(Protocol):
    """A folder of files by name; names may have one ``/``."""

    where: str

    def publish(self, name: str, write: Callable[[Any], None]) -> None:
        """Make a file of what ``write`` puts into the stream it is given; one of that name is replaced."""

    def create(self, name: str, content: bytes) -> bool:
        """Make a small file, unless there is one of that name: then False."""

    def read(self, name: str) -> bytes | None:
        """A whole small file, or None when there is none."""

    def open(self, name: str) -> Any:
        """
        A file for random access, as pyarrow takes it.

        Raises:
            FileNotFoundError: There is none of that name.
        """

    def names(self, folder: str = "") -> list[str]:
        """The names of the files in it, sorted, without the folder's."""

    def remove(self, name: str) -> None:
        """Let a file go; one that is gone is no error."""

    @contextmanager
    def lock(self, role: str) -> Iterator[None]:
        """
        Hold a role that one process may have.

        Raises:
            ArchiveError: Another process has it.
        """


def storage_at(where: str, step: Step = no_step) -> ArchiveStorage:
    """
    The place that a folder's name or a URI means.

    Raises:
        ConnectionFailed: It is none that pyarrow knows.
    """
    if "://" not in where:
        return FolderStorage(Path(where), step)
    try:
        system, path = fs.FileSystem.from_uri(where)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ConnectionFailed(f"{where} is no place for an archive that pyarrow knows: {error}") from error
    if isinstance(system, fs.LocalFileSystem):
        return FolderStorage(Path(path), step)
    return RemoteStorage(where, system, path, step)


class FolderStorage:
    """A folder of this host."""

    def __init__(self, folder: Path, step: Step = no_step) -> None:
        self.where = str(folder)
        self._folder = folder
        self._step = step

    def publish(self, name: str, write: Callable[[Any], None]) -> None:
        path = self._path(name)
        temporary = path.with_name(path.name + TEMPORARY)
        with self._told(), open(temporary, "wb") as file:
            write(file)
            self._step(f"written {name}")
            _sync_file(file)
        self._step(f"synced {name}")
        with self._told():
            os.replace(temporary, path)
            self._step(f"renamed {name}")
            _sync_folder(path.parent)
        self._step(f"published {name}")

    def create(self, name: str, content: bytes) -> bool:
        path = self._path(name)
        temporary = path.with_name(f"{path.name}.{os.getpid()}{TEMPORARY}")
        with self._told():
            with open(temporary, "wb") as file:
                file.write(content)
                _sync_file(file)
            self._step(f"synced {name}")
            try:
                os.link(temporary, path)  # unlike a rename, it does not replace another writer's
            except FileExistsError:
                return False
            finally:
                os.unlink(temporary)
            self._step(f"renamed {name}")
            _sync_folder(path.parent)
        self._step(f"published {name}")
        return True

    def read(self, name: str) -> bytes | None:
        try:
            with self._told():
                return (self._folder / name).read_bytes()
        except FileNotFoundError:
            return None

    def open(self, name: str) -> Any:
        return pa.OSFile(str(self._folder / name))

    def names(self, folder: str = "") -> list[str]:
        path = self._folder / folder
        return sorted(entry.name for entry in path.iterdir() if entry.is_file()) if path.is_dir() else []

    def remove(self, name: str) -> None:
        with self._told():
            (self._folder / name).unlink(missing_ok=True)

    @contextmanager
    def lock(self, role: str) -> Iterator[None]:
        path = self._path(f"_manifest/{role}.lock")
        with self._told():
            held = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(held)
            raise ArchiveError(
                f"Another {role} is at work on {self.where}; an archive has one at a time."
            ) from error
        try:
            yield
        finally:
            os.close(held)

    def _path(self, name: str) -> Path:
        path = self._folder / name
        with self._told():
            path.parent.mkdir(parents=True, exist_ok=True)
        return path

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            raise ArchiveError(f"The archive {self.where} cannot be used: {error}.") from error


class RemoteStorage:
    """A place behind one of pyarrow's file systems, such as ``s3://bucket/folder``."""

    def __init__(self, where: str, system: fs.FileSystem, path: str, step: Step = no_step) -> None:
        self.where = where
        self._system = system
        self._path = path.rstrip("/")
        self._step = step

    def publish(self, name: str, write: Callable[[Any], None]) -> None:
        path = f"{self._path}/{name}"
        is_atomic = self._system.type_name in _PUT_IS_ATOMIC
        written = path if is_atomic else path + TEMPORARY
        with self._told():
            if not is_atomic:
                self._system.create_dir(path.rpartition("/")[0], recursive=True)
            with self._system.open_output_stream(written) as file:
                write(file)
                self._step(f"written {name}")
            if not is_atomic:
                self._system.move(written, path)
        self._step(f"published {name}")

    def create(self, name: str, content: bytes) -> bool:
        if self.read(name) is not None:
            return False
        self.publish(name, lambda file: file.write(content))
        return True

    def read(self, name: str) -> bytes | None:
        try:
            with self._told(), self._system.open_input_stream(f"{self._path}/{name}") as file:
                return bytes(file.read())
        except FileNotFoundError:
            return None

    def open(self, name: str) -> Any:
        return self._system.open_input_file(f"{self._path}/{name}")

    def names(self, folder: str = "") -> list[str]:
        path = f"{self._path}/{folder}" if folder else self._path
        with self._told():
            found = self._system.get_file_info(fs.FileSelector(path, allow_not_found=True))
        return sorted(info.base_name for info in found if info.type == fs.FileType.File)

    def remove(self, name: str) -> None:
        try:
            with self._told():
                self._system.delete_file(f"{self._path}/{name}")
        except FileNotFoundError:
            pass

    @contextmanager
    def lock(self, role: str) -> Iterator[None]:
        yield  # a store has no locks

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except (OSError, pa.ArrowException) as error:
            raise ArchiveError(f"The archive {self.where} cannot be used: {error}") from error


def _sync_file(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
