"""Files that settings name: certificates, and password hashes kept apart from the configuration."""

from collections.abc import Iterator

from gateway.config import toml
from gateway.config.problems import Problem
from gateway.config.settings import Settings, User
from gateway.config.values import check_password_hash
from gateway.tls import TlsError, server_context


def password_hash(user: User) -> str | None:
    """The user's password hash, from the settings or from `password_file`; None for a user with certificates
    only.

    Raises ValueError if the file cannot be read or is not text.
    """
    if user.password_file is None:
        return user.password
    try:
        return user.password_file.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ValueError(f"{user.password_file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{user.password_file} is not UTF-8 text") from error


def unusable_files(settings: Settings) -> Iterator[Problem]:
    """Every named file that is not what it should be."""
    for index, listener in enumerate(settings.listeners):
        if listener.tls:
            try:
                server_context(listener.tls)
            except TlsError as error:
                yield Problem(f"listener[{index}].tls", f"cannot be used: {error}")
    for name, user in settings.users.items():
        try:
            stored = password_hash(user)
            if stored is not None:
                check_password_hash(stored)
        except ValueError as error:
            yield Problem(toml.dotted(["user", name, "password_file"]), f"cannot be used: {error}")
