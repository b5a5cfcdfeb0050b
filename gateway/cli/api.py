"""
The client of a gateway's administration that the verbs share, and how its answers are shown: a table for a person, JSON
for a program.

Exit status: 0 done; 1 the gateway refused, or cannot be reached; 2 wrong usage.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPException
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, Final
from urllib.error import HTTPError
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import HTTPSHandler, ProxyHandler, Request, build_opener

import click

from gateway.cli.options import as_one, authorization, credentials, token_option, trusting
from gateway.cli.words import one_line

DEFAULT_URL: Final = "http://127.0.0.1:8672"

TIMEOUT_S: Final = 600
"""Seconds to wait for an answer: the search for a start in a long log takes time."""

PAGE: Final = 200
"""Objects asked for at a time: one answer of a thousand keeps the loop of the gateway busy for 20 ms."""

WHO_ASKS: Final = "name the user: --user NAME, --token-file FILE, or --tls-cert FILE"
NOT_KNOWN: Final = (
    "what was given is not accepted: the name, password, token or certificate is wrong, or has expired"
)
WHERE_IT_IS: Final = "`rewind serve` starts a gateway; --admin, or REWIND_ADMIN, says where one is"

LOG: Final = ("replayLogs", "default")
"""The path of a Message VPN's log."""

_CLAMP: Final = "say missing=clamp"
"""What a refusal proposes, in the words of an HTTP request; verbs have an option for it."""

MOST_NAMES: Final = 1_000
"""Existing names that are compared with a name that does not exist."""


_LISTS: Final = {
    "queues": ("config", "queueName", "rewind queue list"),
    "topicEndpoints": ("config", "topicEndpointName", "rewind topic-endpoint list"),
    "replayPoints": ("config", "replayPointName", "rewind point list"),
    "clients": ("monitor", "clientName", "rewind client list"),
    "replays": ("monitor", "replayName", "rewind replay list"),
}
"""By the collection in a path: the tree that lists it, the attribute that has the names, and the verb that lists it."""

_ABSENT: Final = re.compile(r"there is no (queue|topic-endpoint|client|point|replay)\b", re.IGNORECASE)


class NotDone(click.ClickException):
    """
    What was asked for is not done: exit status 1, and on stderr a sentence, or with ``--json`` an object of JSON.

    Args:
        more: The gateway's ``code`` and ``status``, and what else it said.
        hint: What to do next, for a person.
    """

    def __init__(
        self, sentence: str, *, as_json: bool, more: Mapping[str, Any] = MappingProxyType({}), hint: str = ""
    ) -> None:
        super().__init__(sentence)
        self._as_json = as_json
        self.more = more
        self.hint = hint
        self.is_absent = False
        """The gateway cannot be reached."""

    def format_message(self) -> str:
        sentence = one_line(self.message)
        return f"{sentence.rstrip('.')}; {self.hint}" if self.hint else sentence

    @property
    def status(self) -> str:
        """The gateway's word for why; empty where it said none."""
        return str(self.more.get("status", ""))

    def show(self, file: IO[Any] | None = None) -> None:
        if self._as_json:
            error = {"description": self.message, **self.more}
            click.echo(json.dumps({"error": error}, ensure_ascii=False), err=True)
        else:
            super().show(file)


@dataclass(frozen=True, slots=True)
class Api:
    """The administration of one Message VPN, and how to show its answers."""

    url: str
    vpn: str
    user: str | None
    password_file: Path | None
    as_json: bool
    token_file: Path | None = None
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    timeout_s: float = TIMEOUT_S

    def ask(self, method: str, tree: str, *names: str, body: Any = None, **query: Any) -> dict[str, Any]:
        """
        Send a request about the object at the path ``names`` of this Message VPN, and return the whole answer.

        Raises:
            NotDone: The request was refused, or the gateway cannot be reached.
        """
        with self._hinting(names):
            return self._ask(method, self._path(tree, names), body, query)

    @contextmanager
    def _hinting(self, names: tuple[str, ...]) -> Iterator[None]:
        """A refusal of a request about the object at ``names`` says where to look, if there is none."""
        try:
            yield
        except NotDone as refused:
            if refused.status == "NOT_FOUND" and not self.as_json:
                refused.hint = self._where_to_look(names, refused.message)
            raise

    def look(self, *names: str, **query: Any) -> Any:
        """The present state of the object at ``names``; see ``ask``."""
        return self.ask("GET", "monitor", *names, **query)["data"]

    def act(self, *names: str, body: Any = None) -> Any:
        """Carry out the action at ``names``, and return what the gateway says of it; see ``ask``."""
        return self.ask("PUT", "action", *names, body=body).get("data")

    def configure(self, method: str, *names: str, body: Any = None) -> Any:
        """Make, change or delete the object at ``names``, and return what the gateway says of it; see ``ask``."""
        return self.ask(method, "config", *names, body=body).get("data")

    def ask_all(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """Send a request about more than one Message VPN; see ``ask``."""
        return self._ask(method, f"/SEMP/v2/{path}", body, {})

    def all(self, tree: str, *names: str, limit: int | None = None, **query: Any) -> Iterator[dict[str, Any]]:
        """Every object of a list, page by page."""
        with self._hinting(names):
            yield from islice(self._pages(self._path(tree, names), limit, query), limit)

    def all_vpns(self) -> Iterator[dict[str, Any]]:
        """Every Message VPN, page by page."""
        return self._pages("/SEMP/v2/monitor/msgVpns", None, {})

    def _path(self, tree: str, names: tuple[str, ...]) -> str:
        path = "/".join(quote(name, safe="") for name in ("msgVpns", self.vpn, *names))
        return f"/SEMP/v2/{tree}/{path}"

    def _ask(self, method: str, path: str, body: Any, query: Mapping[str, Any]) -> dict[str, Any]:
        text = urlencode({name: value for name, value in query.items() if value is not None}, doseq=True)
        request = Request(f"{self.url.rstrip('/')}{path}{'?' if text else ''}{text}", method=method)
        if body is not None:
            request.data = json.dumps(body).encode()
            request.add_header("Content-Type", "application/json")
        header = authorization(self.user, self.password_file, self.token_file)
        if header is not None:
            request.add_header("Authorization", header)
        trust = trusting(self.url, self.tls_ca, self.tls_cert, self.tls_key)
        opener = build_opener(ProxyHandler({}), HTTPSHandler(context=trust))
        try:
            with opener.open(request, timeout=self.timeout_s) as answer:
                found: dict[str, Any] = json.load(answer)
                return found
        except HTTPError as error:
            is_named = header is not None or self.tls_cert is not None
            hint = (NOT_KNOWN if is_named else WHO_ASKS) if error.code == HTTPStatus.UNAUTHORIZED else ""
            raise self.not_done(*_refusal(error), hint) from None
        except (OSError, HTTPException, ValueError) as error:
            # Where it is none of the system's, another server answers: in no HTTP, or in no JSON.
            reason = (
                getattr(error, "reason", error) if isinstance(error, OSError) else "another server is there"
            )
            sentence = f"no gateway's administration at {self.url}: {reason}"
            absent = self.not_done(sentence, hint=WHERE_IT_IS)
            absent.is_absent = True
            raise absent from None

    def not_done(
        self, sentence: str, more: Mapping[str, Any] = MappingProxyType({}), hint: str = ""
    ) -> NotDone:
        """The exception for the caller to raise: why it is not done, and what to do next."""
        if not self.as_json and _takes("--clamp"):
            sentence = sentence.replace(_CLAMP, "say --clamp")
        return NotDone(sentence, as_json=self.as_json, more=more, hint=hint)

    def _pages(self, path: str, limit: int | None, query: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        asked: dict[str, Any] = {**query, "count": PAGE if limit is None else min(PAGE, limit)}
        while True:
            answer = self._ask("GET", path, None, asked)
            yield from answer["data"]
            paging = answer["meta"].get("paging")
            if not paging:
                return
            asked["cursor"] = paging["cursorQuery"]

    def _where_to_look(self, names: tuple[str, ...], sentence: str) -> str:
        """The verb that lists what exists, and names that look like the one that does not; empty for other refusals."""
        listed = _LISTS.get(names[0]) if len(names) > 1 else None
        if listed is None or not _ABSENT.match(sentence):
            return ""
        tree, key, verb = listed
        try:
            found = self.all(tree, names[0], limit=MOST_NAMES, select=key)
            near = difflib.get_close_matches(names[1], {str(one[key]) for one in found})
        except (NotDone, KeyError):
            near = []  # this user may have no right to list them
        meant = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
        return f"{meant}`{verb}` shows those there are"

    def show(self, data: Any, *, with_names: bool = False) -> None:
        """Print one object, a line for each attribute; see ``print_object``."""
        if self.as_json:
            click.echo(json.dumps(data, ensure_ascii=False))
        elif data:
            from gateway.cli.tables import print_object  # noqa: PLC0415 - it loads rich

            print_object(data, with_names=with_names)

    def table(self, things: Iterator[dict[str, Any]], columns: Sequence[str], empty: str = "none") -> None:
        """Print a list: a table, or the sentence ``empty``; with ``--json`` an object a line."""
        if self.as_json:
            for thing in things:
                click.echo(json.dumps(thing, ensure_ascii=False))
            return
        from gateway.cli.tables import print_table  # noqa: PLC0415 - it loads rich

        print_table(things, columns, empty)

    def done(self, data: Any, sentence: str) -> None:
        """Print what was done, for a person, or the answer, for a program."""
        if self.as_json:
            click.echo(json.dumps(data if data is not None else {}, ensure_ascii=False))
        else:
            click.echo(sentence)


def verb(
    group: click.Group, name: str, *parameters: Callable[[Any], Any], **settings: Any
) -> Callable[[Callable[..., Any]], click.Command]:
    """
    Make a function a verb of a group. It takes ``api``, and the arguments that ``parameters`` declare.

    Args:
        settings: Further settings of click's ``Command``.
    """

    def add(function: Callable[..., Any]) -> click.Command:
        command = api_options(function)
        for parameter in reversed(parameters):
            command = parameter(command)
        return group.command(name, **settings)(command)

    return add


def _http_url(context: click.Context, option: click.Parameter, url: str) -> str:
    try:
        named = urlsplit(url)
        is_valid = named.scheme in ("http", "https") and bool(named.hostname) and named.port != 0
    except ValueError:  # the port is no number up to 65535, or a bracket is not closed
        is_valid = False
    if not is_valid or re.search(r"[\x00-\x20\x7f]", url):
        raise click.BadParameter(f"{url!r} is not an HTTP url; write http://HOST:PORT, or https:// for TLS")
    return url


api_options: Final = as_one(
    "api",
    Api,
    click.option(
        "--admin",
        "url",
        default=DEFAULT_URL,
        envvar="REWIND_ADMIN",
        show_default=True,
        callback=_http_url,
        help="Address of the gateway's administration.",
    ),
    click.option("--vpn", default="default", envvar="REWIND_VPN", show_default=True),
    *credentials("Name of a user with `administer` rules."),
    token_option,
    click.option(
        "--json", "as_json", is_flag=True, help="Print JSON for programs; of a list, one object a line."
    ),
)
"""The options of every verb that administers."""


def _takes(option: str) -> bool:
    """Whether the verb that runs has the option."""
    context = click.get_current_context(silent=True)
    return context is not None and any(option in parameter.opts for parameter in context.command.params)


def _refusal(error: HTTPError) -> tuple[str, dict[str, Any]]:
    """The sentence of a refusal, and what else the gateway said."""
    try:
        more: dict[str, Any] = dict(json.load(error)["meta"]["error"])
        return str(more.pop("description")), more
    except (ValueError, KeyError, TypeError):
        return f"the gateway answered {error.code} {error.reason}", {}
