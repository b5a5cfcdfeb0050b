"""
The client of a gateway's administration that the verbs share, and how its answers are shown: a table for a person, JSON
for a program.

Exit status: 0 done; 1 the gateway refused, or cannot be reached; 2 wrong usage.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, Final, NamedTuple, TypeVar
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode
from urllib.request import HTTPSHandler, ProxyHandler, Request, build_opener

import click

from gateway.cli.options import authorization, credential_options, token_option, trusting
from gateway.cli.words import one_line

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_URL = "http://127.0.0.1:8672"
TIMEOUT_S = 600
"""Seconds until an answer: a start that is searched for in a long log takes its time."""
PAGE = 200
"""Objects asked for at a time: one answer of a thousand keeps the loop of the gateway busy for 20 ms."""


WHO_ASKS: Final = "say who asks: --user NAME, or --token-file FILE"
WHERE_IT_IS: Final = "`rewind serve` starts a gateway; --admin, or REWIND_ADMIN, says where one is"

_CLAMP: Final = "say missing=clamp"
"""What a refusal proposes in the words of requests; verbs have an option for it."""


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
        """There is no gateway to ask."""

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
    """The administration of one Message VPN, and how to show what it says."""

    url: str
    vpn: str
    user: str | None
    password_file: Path | None
    as_json: bool
    token_file: Path | None = None
    tls_ca: Path | None = None
    timeout_s: float = TIMEOUT_S

    def ask(self, method: str, tree: str, *names: str, body: Any = None, **query: Any) -> dict[str, Any]:
        """
        A request about what ``names`` lead to in this Message VPN; the whole answer.

        Raises:
            NotDone: It was refused, or there is no gateway.
        """
        path = "/".join(quote(name, safe="") for name in ("msgVpns", self.vpn, *names))
        try:
            return self._ask(method, f"/SEMP/v2/{tree}/{path}", body, query)
        except NotDone as refused:
            if refused.more.get("status") == "NOT_FOUND" and not self.as_json:
                refused.hint = where_to_look(names, refused.message, self._names_of)
            raise

    def _names_of(self, tree: str, collection: str, key: str) -> list[str]:
        """What a collection has; nothing where that may not be known."""
        try:
            return [str(one[key]) for one in self.all(tree, collection, limit=MOST_NAMES, select=key)]
        except (NotDone, KeyError):
            return []

    def ask_all(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """
        A request about what is not of one Message VPN; the whole answer.

        Raises:
            NotDone: It was refused, or there is no gateway.
        """
        return self._ask(method, f"/SEMP/v2/{path}", body, {})

    def all_vpns(self) -> Iterator[dict[str, Any]]:
        """Every Message VPN, page by page."""
        return self._pages("/SEMP/v2/monitor/msgVpns", None, {})

    def _ask(self, method: str, path: str, body: Any, query: Mapping[str, Any]) -> dict[str, Any]:
        text = urlencode({name: value for name, value in query.items() if value is not None}, doseq=True)
        request = Request(f"{self.url.rstrip('/')}{path}{'?' if text else ''}{text}", method=method)
        if body is not None:
            request.data = json.dumps(body).encode()
            request.add_header("Content-Type", "application/json")
        header = authorization(self.user, self.password_file, self.token_file)
        if header is not None:
            request.add_header("Authorization", header)
        opener = build_opener(ProxyHandler({}), HTTPSHandler(context=trusting(self.url, self.tls_ca)))
        try:
            with opener.open(request, timeout=self.timeout_s) as answer:
                found: dict[str, Any] = json.load(answer)
                return found
        except HTTPError as error:
            hint = WHO_ASKS if error.code == HTTPStatus.UNAUTHORIZED else ""
            raise self.not_done(*_refusal(error), hint) from None
        except (URLError, OSError) as error:
            reason = getattr(error, "reason", error)
            sentence = f"no gateway's administration at {self.url}: {reason}"
            absent = self.not_done(sentence, hint=WHERE_IT_IS)
            absent.is_absent = True
            raise absent from None

    def not_done(
        self, sentence: str, more: Mapping[str, Any] = MappingProxyType({}), hint: str = ""
    ) -> NotDone:
        """To be raised: why it is not done, and what to do next."""
        if not self.as_json and _takes("--clamp"):
            sentence = sentence.replace(_CLAMP, "say --clamp")
        return NotDone(sentence, as_json=self.as_json, more=more, hint=hint)

    def all(self, tree: str, *names: str, limit: int | None = None, **query: Any) -> Iterator[dict[str, Any]]:
        """Every object of a list, page by page."""
        path = "/".join(quote(name, safe="") for name in ("msgVpns", self.vpn, *names))
        return self._pages(f"/SEMP/v2/{tree}/{path}", limit, query)

    def _pages(self, path: str, limit: int | None, query: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        left = limit
        cursor: str | None = None
        while left is None or left > 0:
            count = PAGE if left is None else min(PAGE, left)
            answer = self._ask("GET", path, None, {**query, "count": count, "cursor": cursor})
            yield from answer["data"]
            if left is not None:
                left -= len(answer["data"])
            paging = answer["meta"].get("paging")
            if not paging:
                return
            cursor = paging["cursorQuery"]

    def show(self, data: Any, *, with_names: bool = False) -> None:
        """One object, a line for each attribute; see ``print_object``."""
        if self.as_json:
            click.echo(json.dumps(data, ensure_ascii=False))
        elif data:
            from gateway.cli.tables import print_object  # noqa: PLC0415 - it loads rich

            print_object(data, with_names=with_names)

    def table(self, things: Iterator[dict[str, Any]], columns: Sequence[str], empty: str = "none") -> None:
        """A list: a line for each, or with ``--json`` an object a line; of nothing, the sentence ``empty``."""
        if self.as_json:
            for thing in things:
                click.echo(json.dumps(thing, ensure_ascii=False))
            return
        from gateway.cli.tables import print_table  # noqa: PLC0415 - it loads rich

        print_table(things, columns, empty)

    def done(self, data: Any, sentence: str) -> None:
        """What was done, for a person, or the answer for a program."""
        if self.as_json:
            click.echo(json.dumps(data if data is not None else {}, ensure_ascii=False))
        else:
            click.echo(sentence)


def _http_url(context: click.Context, option: click.Parameter, url: str) -> str:
    if not url.startswith(("http://", "https://")):
        raise click.BadParameter(f"{url!r} is none of HTTP; write http://HOST:PORT, or https:// for TLS")
    return url


def api_options(command: F) -> F:
    """The options of every verb that administers; they come as one argument, ``api``."""

    def with_api(
        admin: str,
        vpn: str,
        user: str | None,
        password_file: Path | None,
        tls_ca: Path | None,
        token_file: Path | None,
        as_json: bool,
        **rest: Any,
    ) -> Any:
        return command(api=Api(admin, vpn, user, password_file, as_json, token_file, tls_ca), **rest)

    with_api.__name__, with_api.__doc__ = command.__name__, command.__doc__
    if hasattr(command, "__click_params__"):
        with_api.__click_params__ = command.__click_params__  # type: ignore[attr-defined]
    wrapped: Any = with_api
    for option in reversed(
        [
            click.option(
                "--admin",
                default=DEFAULT_URL,
                envvar="REWIND_ADMIN",
                show_default=True,
                callback=_http_url,
                help="Its address.",
            ),
            click.option("--vpn", default="default", envvar="REWIND_VPN", show_default=True),
            credential_options("Name of a user with `administer` rules."),
            token_option,
            click.option("--json", "as_json", is_flag=True, help="JSON for programs; of lists one a line."),
        ]
    ):
        wrapped = option(wrapped)
    result: F = wrapped
    return result


def _takes(option: str) -> bool:
    """Whether the verb that runs has the option."""
    context = click.get_current_context(silent=True)
    return context is not None and any(option in parameter.opts for parameter in context.command.params)


def _refusal(error: HTTPError) -> tuple[str, dict[str, Any]]:
    """The sentence, and what else the gateway said."""
    try:
        more: dict[str, Any] = dict(json.load(error)["meta"]["error"])
        return str(more.pop("description")), more
    except (ValueError, KeyError, TypeError):
        return f"the gateway answered {error.code} {error.reason}", {}


MOST_NAMES: Final = 1_000
"""Names that are compared with one that is not there."""


class _Listed(NamedTuple):
    tree: str
    key: str
    verb: str


_LISTS: Final = {
    "queues": _Listed("config", "queueName", "rewind queue list"),
    "topicEndpoints": _Listed("config", "topicEndpointName", "rewind topic-endpoint list"),
    "replayPoints": _Listed("config", "replayPointName", "rewind point list"),
    "clients": _Listed("monitor", "clientName", "rewind client list"),
    "replays": _Listed("monitor", "replayName", "rewind replay list"),
}
"""By the collection in a path."""

_ABSENT: Final = re.compile(r"there is no (queue|topic-endpoint|client|point|replay)\b", re.IGNORECASE)

NamesOf = Callable[[str, str, str], Iterable[str]]
"""Names in a tree's collection, by the attribute that has them."""


def where_to_look(names: tuple[str, ...], sentence: str, names_of: NamesOf) -> str:
    """
    What to add to a refusal; nothing where it is about something else than a thing that is not there.

    Args:
        names: The path of the request below its Message VPN.
        sentence: What the gateway said.
    """
    listed = _LISTS.get(names[0]) if len(names) > 1 else None
    if listed is None or not _ABSENT.match(sentence):
        return ""
    near = difflib.get_close_matches(names[1], set(names_of(listed.tree, names[0], listed.key)))
    meant = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    return f"{meant}`{listed.verb}` shows those there are"
