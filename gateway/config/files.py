"""Files that settings name: certificates, and hashes of passwords and tokens kept apart from the configuration."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gateway.config import toml
from gateway.config.bearer_tokens import check_token_hash
from gateway.config.problems import ConfigProblem
from gateway.config.setting_types import check_password_hash
from gateway.config.settings import Settings, User
from gateway.tls import TlsError, server_context

SAS_KEY_CHARACTERS: Final = 16
"""Fewest characters of a key. Whoever sees one signature can try keys for as long as he likes."""


def password_hash(user: User) -> str | None:
    """The user's password hash, from the settings or from ``password_file``; None for a user with certificates
    only.

    Raises:
        ValueError: The file cannot be read or is not text.
    """
    return user.password if user.password_file is None else _content(user.password_file)


def hash_of_token(user: User) -> str | None:
    """The hash of the user's token, from the settings or from ``token_file``; None for a user without one.

    Raises:
        ValueError: The file cannot be read or is not text.
    """
    return user.token if user.token_file is None else _content(user.token_file)


def sas_key(user: User) -> str | None:
    """The key of the user's shared access signatures, from ``sas_key_file``; None for a user without one.

    Raises:
        ValueError: The file cannot be read or is not text.
    """
    return None if user.sas_key_file is None else _content(user.sas_key_file)


def check_sas_key(text: str) -> str:
    """``text`` as it is, if it is hard to guess.

    Raises:
        ValueError: It is not; the sentence does not quote it.
    """
    if len(text) < SAS_KEY_CHARACTERS:
        raise ValueError(
            f"a key has {SAS_KEY_CHARACTERS} characters or more; `openssl rand -base64 32` makes a good one"
        )
    return text


def _content(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not UTF-8 text") from error


def unusable_files(settings: Settings) -> Iterator[ConfigProblem]:
    """Every named file that is not what it should be."""
    places = {f"listener[{index}].tls": listener.tls for index, listener in enumerate(settings.listeners)}
    for path, tls in {**places, "admin.tls": settings.admin.tls}.items():
        if tls:
            try:
                server_context(tls)
            except TlsError as error:
                yield ConfigProblem(path, f"cannot be used: {error}")
    for name, vpn in settings.vpns.items():
        if vpn.store is not None and vpn.store.password_file is not None:
            try:
                _content(vpn.store.password_file)
            except ValueError as error:
                path = toml.dotted(["vpn", name, "store", "password_file"])
                yield ConfigProblem(path, f"cannot be used: {error}")
        for label, target in vpn.replay_targets.items():
            for key, file in (("password_file", target.password_file), ("tls_ca", target.tls_ca)):
                try:
                    if file is not None:
                        _content(file)
                except ValueError as error:
                    path = toml.dotted(["vpn", name, "replay_target", label, key])
                    yield ConfigProblem(path, f"cannot be used: {error}")
    for name, user in settings.users.items():
        for key, read, check in (
            ("password_file", password_hash, check_password_hash),
            ("token_file", hash_of_token, check_token_hash),
            ("sas_key_file", sas_key, check_sas_key),
        ):
            try:
                stored = read(user)
                if stored is not None:
                    check(stored)
            except ValueError as error:
                yield ConfigProblem(toml.dotted(["user", name, key]), f"cannot be used: {error}")
