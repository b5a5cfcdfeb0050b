"""
From a TOML file and command-line options to ``Settings``, or to everything that is wrong with them.

Invariant: one run reports every problem. A setting that cannot be read is reported and left out, and the rest is read
without it, so that rules over several settings are checked in the same run. A rule's complaint about a setting that was
already reported is dropped, as a consequence of that.
"""

import difflib
import importlib.util
import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from gateway.config import toml
from gateway.config.changes import administered_over, read_administered
from gateway.config.problems import ConfigError, ConfigProblem, broken_rules, unrelated
from gateway.config.setting_types import ListenAddress, check_password_hash, check_token_hash, parse_address
from gateway.config.settings import Listener, Settings, User, default_vpns
from gateway.config.toml import READER, SECRETS, keys_at
from gateway.config.vpn import Vpn, masked
from gateway.tls import authorities, server_context

_LONGEST_QUOTE = 60

_SAYS = {
    "bool_type": "should be true or false",
    "dataclass_type": "should be a table",
    "dict_type": "should be a table",
    "int_from_float": "should be a whole number",
    "int_type": "should be a whole number",
    "path_type": "should be a string",
    "string_type": "should be a string",
    "tuple_type": "should be an array",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """What a command line says in place of the file; None or empty leaves what the file says."""

    data: Path | None = None
    listen: tuple[str, ...] = ()
    admin: str | None = None


NO_OVERRIDES = Overrides()


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """Settings in effect, and where they come from, so that they can be read again."""

    settings: Settings
    file: Path | None = None
    overrides: Overrides = NO_OVERRIDES
    named: frozenset[str] = frozenset()
    """The paths of all that the file names, ``vpn.default.replay_log`` and ``vpn.default.replay_log.quota_mb``."""

    def read_again(self) -> "Configuration":
        """Read the same file again.

        Raises:
            ConfigError: With every problem there is; also where there is no file.
        """
        if self.file is None:
            raise ConfigError(["there is nothing to read again: the gateway was started without --config"])
        # Another data folder in the file is for the next start: administrators' changes are in the present one.
        return read(self.file, self.overrides, kept_in=self.settings.data)


def read(
    file: Path | None = None, overrides: Overrides | None = None, *, kept_in: Path | None = None
) -> Configuration:
    """The settings in ``file`` (None: the defaults), then ``overrides``, then the changes by administrators, which are
    kept in the data folder (or in ``kept_in``). Also checks the files that the settings name.

    Raises:
        ConfigError: With every problem there is.
    """
    text = ""
    if file is not None:
        try:
            text = file.read_text(encoding="utf-8")
        except OSError as error:
            raise ConfigError([f"{file} cannot be read: {error.strerror}"]) from error
        except UnicodeDecodeError as error:
            raise ConfigError([f"{file} is not UTF-8 text, at byte {error.start}"]) from error
    overrides = overrides or NO_OVERRIDES
    settings, problems, named = _read(text, str(file))
    settings = _override(settings, overrides, problems)
    kept = read_administered(kept_in or settings.data)
    # The rules are about the file; yet its users may enter Message VPNs that an administrator made.
    made = {name: Vpn() for name in kept}
    problems += unrelated(broken_rules(replace(settings, vpns=made | settings.vpns)), problems)
    problems += unrelated(unusable_files(settings), problems)
    if problems:
        raise ConfigError([str(problem) for problem in problems])
    settings = administered_over(settings, kept, named)
    return Configuration(settings=settings, file=file, overrides=overrides, named=named)


def parse(text: str) -> Settings:
    """The settings in a TOML text, without looking at the files they name.

    Raises:
        ConfigError: With every problem there is.
    """
    settings, problems, _ = _read(text)
    problems += unrelated(broken_rules(settings), problems)
    if problems:
        raise ConfigError([str(problem) for problem in problems])
    return settings


def _read(
    text: str, source: str = "the configuration"
) -> tuple[Settings, list[ConfigProblem], frozenset[str]]:
    """What can be read of ``text``, a problem for each thing that cannot, and the paths of all that it names.

    ``source`` names the text.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError([f"{source} is not TOML: {error}"]) from error
    named = frozenset(_paths(document, ()))
    problems: list[ConfigProblem] = []
    while True:
        try:
            # Through JSON, because there pydantic's strict mode takes arrays and tables as TOML has them.
            settings = READER.validate_json(json.dumps(document, default=str), by_alias=True, by_name=False)
        except ValidationError as error:
            details = error.errors(include_url=False)
            problems += unrelated([_problem(detail) for detail in details], problems)
            for detail in reversed(details):
                _leave_out(document, detail)
        else:
            return replace(settings, vpns=default_vpns() | settings.vpns), problems, named


def _paths(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    for key, value in table.items():
        yield toml.dotted((*path, key))
        if isinstance(value, dict):
            yield from _paths(value, (*path, key))


def _place(detail: ErrorDetails) -> tuple[int | str, ...]:
    """The place of an error; the key, where the error is about a table's key itself."""
    location = detail["loc"]
    return location[:-1] if location and location[-1] == "[key]" else location


def _problem(detail: ErrorDetails) -> ConfigProblem:
    place = _place(detail)
    match detail["type"]:
        case "missing":
            says = "is missing"
        case "unexpected_keyword_argument":
            says = f"is not a setting; {_alternatives(place)}"
        case "value_error":
            says = f"is wrong: {detail['ctx']['error']}"
        case kind:
            says = _SAYS.get(kind) or re.sub(r"^(Input|String) should", "should", detail["msg"])
            if SECRETS.isdisjoint(place):
                says += f", not {_quote(detail['input'])}"
            if place in (("listener",), ("identity_provider",)) and isinstance(detail["input"], dict):
                says += f"; write `[[{place[0]}]]`"
    return ConfigProblem(toml.dotted(place), says)


def _quote(value: object) -> str:
    text = masked(json.dumps(value, ensure_ascii=False, default=str))
    return text if len(text) <= _LONGEST_QUOTE else text[:_LONGEST_QUOTE] + "…"


def _alternatives(place: tuple[int | str, ...]) -> str:
    """What could have been meant by the unknown key at the end of ``place``."""
    known = sorted(keys_at(place[:-1]))
    close = difflib.get_close_matches(str(place[-1]), known, n=1)
    return f"did you mean `{close[0]}`?" if close else f"known here are {', '.join(known)}"


def _leave_out(document: dict[str, Any], detail: ErrorDetails) -> None:
    """Take out of ``document`` the smallest keyed thing that holds the error, if it is still there."""
    place = _place(detail)
    if detail["type"] == "missing":
        place = place[:-1]
    while isinstance(place[-1], int):
        place = place[:-1]
    table: Any = document
    for step in place[:-1]:
        try:
            table = table[step]
        except (KeyError, IndexError):
            return
    table.pop(place[-1], None)


def _override(settings: Settings, overrides: Overrides, problems: list[ConfigProblem]) -> Settings:
    if overrides.data is not None:
        settings = replace(settings, data=overrides.data)
    if overrides.listen:
        listeners = []
        for text in overrides.listen:
            try:
                listeners.append(_listener(parse_address(text), settings.listeners))
            except ValueError as error:
                problems.append(ConfigProblem("--listen", f"{text}: {error}"))
        settings = replace(settings, listeners=tuple(listeners) or settings.listeners)
    if overrides.admin is not None:
        try:
            address = parse_address(overrides.admin)
        except ValueError as error:
            problems.append(ConfigProblem("--admin", f"{overrides.admin}: {error}"))
        else:
            # With the file's certificate, if it has one: a port on the command line must not turn TLS off.
            settings = replace(settings, admin=replace(settings.admin, host=address.host, port=address.port))
            if address.secure and settings.admin.tls is None:
                says = f"{overrides.admin}: `https://` needs a certificate; give the file an `[admin.tls]`"
                problems.append(ConfigProblem("--admin", says))
    return settings


def _listener(address: ListenAddress, configured: tuple[Listener, ...]) -> Listener:
    """A listener at ``address``, otherwise like the first configured one with TLS, or without, as the address says."""
    for listener in configured:
        if address.secure == (listener.tls is not None):
            return replace(listener, host=address.host, port=address.port)
    if address.secure:
        raise ValueError("`amqps://` needs a certificate; give the file a `[listener.tls]`")
    return Listener(host=address.host, port=address.port)


SecretKind: TypeAlias = Literal["password", "token", "sas_key"]

SAS_KEY_CHARACTERS: Final = 16
"""Fewest characters of a key. An attacker who has seen one signature can try keys for as long as he likes."""


def secret_of(user: User, kind: SecretKind) -> str | None:
    """
    A user's secret as it is configured (a hash, or the key itself), in the settings or in the file that they name.

    Raises:
        ValueError: The file cannot be read or is not text.
    """
    file: Path | None = getattr(user, f"{kind}_file")
    return getattr(user, kind, None) if file is None else _content(file)


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
    for path, use in _uses_of_files(settings):
        try:
            use()
        except ValueError as error:
            yield ConfigProblem(path, f"cannot be used: {error}")


def _uses_of_files(settings: Settings) -> Iterator[tuple[str, Callable[[], object]]]:
    """For each file that a setting names: the setting's path, and a function that raises ValueError for a bad file."""
    places = {f"listener[{index}].tls": listener.tls for index, listener in enumerate(settings.listeners)}
    for path, tls in {**places, "admin.tls": settings.admin.tls}.items():
        if tls:
            yield path, partial(server_context, tls)
    for name, vpn in settings.vpns.items():
        if vpn.store is not None and vpn.store.password_file is not None:
            path = toml.dotted(["vpn", name, "store", "password_file"])
            yield path, partial(_content, vpn.store.password_file)
        for label, target in vpn.replay_targets.items():
            for key, file in (("password_file", target.password_file), ("tls_ca", target.tls_ca)):
                if file is not None:
                    path = toml.dotted(["vpn", name, "replay_target", label, key])
                    yield path, partial(_content, file)
    for index, provider in enumerate(settings.identity_providers):
        path = f"identity_provider[{index}]"
        yield path, _check_extra
        for key, use in (
            ("jwks_file", check_key_set),
            ("client_secret_file", _content),
            ("tls_ca", authorities),
        ):
            file = getattr(provider, key)
            if file is not None:
                yield f"{path}.{key}", partial(use, file)
    for name, user in settings.users.items():
        for kind, check in _SECRETS_OF_USERS.items():
            yield toml.dotted(["user", name, f"{kind}_file"]), partial(_check_secret, user, kind, check)


def _check_extra() -> None:
    if any(importlib.util.find_spec(name) is None for name in ("cryptography", "jwt")):
        raise ValueError(
            "its tokens need PyJWT and cryptography; install them: pip install 'rewind-gateway[oauth]'"
        )


def check_key_set(file: Path) -> None:
    """Check that a file is a JSON Web Key Set (RFC 7517 section 5); its keys are checked later.

    Raises:
        ValueError: It is not.
    """
    try:
        keys = json.loads(_content(file))["keys"]
    except (ValueError, KeyError, TypeError, RecursionError):
        keys = None
    if not isinstance(keys, list):
        _content(file)  # raises the reason where the file cannot be read
        raise ValueError(f'{file} is not a JSON Web Key Set, `{{"keys": [...]}}`')


def _check_secret(user: User, kind: SecretKind, check: Callable[[str], str]) -> None:
    stored = secret_of(user, kind)
    if stored is not None:
        check(stored)


_SECRETS_OF_USERS: Final[Mapping[SecretKind, Callable[[str], str]]] = {
    "password": check_password_hash,
    "token": check_token_hash,
    "sas_key": check_sas_key,
}
"""The kinds of secrets, each with its check."""
