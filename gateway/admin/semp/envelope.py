"""
The envelope of every answer, ``{data, links, meta}``, the form of errors, and what the OpenAPI document says of both.

Invariant: every error of a request to these resources has the same form, and says which attribute was wrong and what is
allowed. As at Solace, every error of a client is status 400; the code in ``meta.error`` says which it is.

The OpenAPI document needs no list of attributes. The types of attributes that a request may set are in the model of its
body; the types of attributes that are only shown are next to their values, in ``Shown``; ``resource`` unites both.
Every attribute of an answer is documented. None is required, as ``select`` may leave out any.
"""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import or_
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Generic,
    Literal,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from fastapi import FastAPI, Request, Response
from fastapi.exception_handlers import http_exception_handler
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field, create_model
from starlette.exceptions import HTTPException
from starlette.routing import Route
from typing_extensions import TypedDict

from amqp_ext.addresses.forms import AddressError
from amqp_ext.replay_start import ReplayStartError
from amqp_ext.topics import TopicSyntaxError
from gateway.admin.audit import SIGN_IN, asked_of
from gateway.core.errors import ErrorCode, Refused
from store.errors import LogTrimmed, ReadFailed

T = TypeVar("T")

Responses: TypeAlias = dict[int | str, dict[str, Any]]
"""What the OpenAPI document says of answers, as FastAPI takes it: by status."""

Attributes: TypeAlias = Mapping[str, Any]
"""The values that are shown of an object, by attribute."""

ROOT: Final = "/SEMP/v2"

CLIENTS_ROOT: Final = "/v1"
"""Path of the operations for clients without AMQP."""

WRITTEN: Final = 100
"""Objects of a list that are encoded in one turn of the loop: about a millisecond."""

written: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
"""Makes the JSON text of an object."""

CODES: Final = {
    "FAIL": 2,
    "NOT_FOUND": 6,
    "ALREADY_EXISTS": 10,
    "INVALID_PARAMETER": 11,
    "NOT_SUPPORTED": 14,
    "PARSE_ERROR": 27,
    "UNAUTHORIZED": 72,
    "NOT_ALLOWED": 89,
    "MISSING_PARAMETER": 228,
}
"""Error codes by their status. Source: Solace documentation, "SEMP Error Handling"."""


_CHALLENGES: Final = 'Basic realm="rewind", charset="UTF-8", Bearer realm="rewind"'
"""The ways to log in, as RFC 9110 section 11.6.1 lists them."""

_CHALLENGE_OF_SCRIPT: Final = 'Bearer realm="rewind"'
"""The same for a script of a page, which asks for credentials itself: with ``Basic`` the browser would open a window of
its own for a name and a password."""


class SempError(Exception):
    """A request that is not carried out. Its text is one sentence."""

    def __init__(self, status: str, text: str, http_status: int = 400) -> None:
        super().__init__(text)
        self.status = status
        # JSON can name half of a character, which no answer and no line of the log can say.
        self.text = text.encode("utf-8", "backslashreplace").decode()
        self.http_status = http_status


class Asked(BaseModel):
    """The request that is answered."""

    method: str
    uri: str


class NextPage(BaseModel):
    """Where the next page of a list begins."""

    cursorQuery: str = Field(description="The value of the query parameter `cursor`.")
    nextPageUri: str


class Meta(BaseModel):
    """About the answer."""

    responseCode: int = 200
    request: Asked
    count: int | None = Field(default=None, description="Number of objects in the whole list.")
    paging: NextPage | None = Field(default=None, description="Absent on the last page.")


class Answer(BaseModel):
    """One object."""

    data: dict[str, Any] | None = None
    links: dict[str, str] | None = None
    meta: Meta


class ListAnswer(Response):
    """A page of objects, encoded already."""

    media_type = "application/json"


class Problem(BaseModel):
    """Why a request was refused."""

    code: Literal[tuple(CODES.values())]  # type: ignore[valid-type]
    status: Literal[tuple(CODES)]  # type: ignore[valid-type]
    description: str = Field(description="One sentence: what is wrong, and what would be right.")
    replayError: str | None = Field(
        default=None, description="Ours: the replay error, as in the detach of a link."
    )
    subcode: int | None = Field(default=None, description="The same, as Solace's subcode.")


class FailureMeta(BaseModel):
    """About a refusal."""

    responseCode: int
    request: Asked
    error: Problem


class Failure(BaseModel):
    """The answer to a refused request, in place of an `Answer`."""

    meta: FailureMeta


REFUSALS: Final[Responses] = {
    "4XX": {
        "model": Failure,
        "description": "Refused: 400, any error of the request; 401, the user is not known; 403, the user may not, or "
        "a foreign web page sends the request; 405, the resource does not have this method; 408, the body did not "
        "arrive in time; 413, the body is too large; 421, the host name is not one of the administration's.",
    },
    503: {
        "model": Failure,
        "description": "The store could not write or read, another gateway is active, or the gateway is ending.",
    },
}
"""All that these resources may answer other than 200, for the OpenAPI document."""


def answer(request: Request, data: Attributes | None = None) -> Answer:
    """The answer with one object, or, after an action, without data."""
    return Answer(
        data=None if data is None else dict(data), links={"uri": str(request.url)}, meta=_meta(request)
    )


def _meta(request: Request) -> Meta:
    return Meta(request=Asked(method=request.method, uri=str(request.url)))


async def list_answer(
    request: Request, page: Sequence[Mapping[str, Any]], cursor: str | None, total: int | None = None
) -> ListAnswer:
    """
    A page of a list; ``cursor`` is where the next one begins, ``total`` how many objects there are.

    A page may have a thousand objects of thirty attributes: they are encoded over several turns of the loop, and not
    validated against a model, which would hold up the loop for 30 ms.
    """
    meta = _meta(request)
    meta.count = total
    if cursor is not None:
        following = request.url.include_query_params(cursor=cursor)
        meta.paging = NextPage(cursorQuery=cursor, nextPageUri=str(following))
    texts: list[str] = []
    for place, thing in enumerate(page, 1):
        texts.append(written(thing))
        if place % WRITTEN == 0 and place < len(page):
            await asyncio.sleep(0)
    return ListAnswer(f'{{"data":[{",".join(texts)}],"links":[],"meta":{meta.model_dump_json()}}}')


_STATUS_OF: Final = {
    ErrorCode.NOT_FOUND: "NOT_FOUND",
    ErrorCode.ALREADY_EXISTS: "ALREADY_EXISTS",
    ErrorCode.INVALID_FIELD: "INVALID_PARAMETER",
    ErrorCode.DECODE_ERROR: "PARSE_ERROR",
    ErrorCode.UNKNOWN_START: "INVALID_PARAMETER",
    ErrorCode.NOT_IMPLEMENTED: "NOT_SUPPORTED",
    ErrorCode.REPLAY_TEMPORARY: "NOT_SUPPORTED",
}


def refusal(refused: Exception) -> SempError:
    """The HTTP error for a command that was refused, for a text that is wrong, or for a store that does not answer."""
    if isinstance(refused, SempError):
        return refused
    if isinstance(refused, ReadFailed | LogTrimmed):
        return SempError("FAIL", f"The store cannot be read now: {refused}; try again later.", 503)
    if not isinstance(refused, Refused):
        return SempError("INVALID_PARAMETER", str(refused))
    # A client that was forced off may reconnect later (AMQP 1.0, section 2.8.16), which is what 503 says.
    if refused.code in (ErrorCode.INTERNAL, ErrorCode.CONNECTION_FORCED):
        return SempError("FAIL", refused.text, 503)
    return SempError(_STATUS_OF.get(refused.code, "NOT_ALLOWED"), refused.text)


def problem_of(refused: Refused) -> dict[str, Any]:
    """The error of a refusal as an object, for answers that also have messages."""
    error = refusal(refused)
    return {
        "code": CODES[error.status],
        "status": error.status,
        "description": error.text,
        "condition": refused.code.condition,
        **_replay_error(refused.code),
    }


def _replay_error(code: ErrorCode) -> dict[str, Any]:
    return {} if code.replay_error is None else {"replayError": code.replay_error, "subcode": code.subcode}


def told(
    request: Request, error: SempError, data: Mapping[str, Any] | None = None, **more: Any
) -> JSONResponse:
    """The answer to a request that is refused; ``data`` says what was done nevertheless."""
    asked_of(request.scope).reason = error.text
    meta = {
        "responseCode": error.http_status,
        "request": {"method": request.method, "uri": str(request.url)},
        "error": {"code": CODES[error.status], "status": error.status, "description": error.text, **more},
    }
    headers = None
    if error.http_status == 401:
        # Fetch Metadata Request Headers, W3C, section 2.1
        is_script = request.headers.get("sec-fetch-dest") == "empty"
        headers = {"WWW-Authenticate": _CHALLENGE_OF_SCRIPT if is_script else _CHALLENGES}
    content = {"meta": meta} if data is None else {"meta": meta, "data": data}
    return JSONResponse(content, status_code=error.http_status, headers=headers)


def tell_errors(app: FastAPI) -> None:
    """Have the application answer errors of these resources in the form of ``Failure``."""

    async def refused(request: Request, error: Exception) -> JSONResponse:
        more = _replay_error(error.code) if isinstance(error, Refused) else {}
        return told(request, refusal(error), **more)

    for kind in (
        SempError,
        Refused,
        ReadFailed,
        LogTrimmed,
        TopicSyntaxError,
        ReplayStartError,
        AddressError,
    ):
        app.add_exception_handler(kind, refused)

    @app.exception_handler(HTTPException)
    async def no_route(request: Request, error: HTTPException) -> Response:
        if not request.url.path.startswith((ROOT, CLIENTS_ROOT, SIGN_IN)):
            return await http_exception_handler(request, error)
        if error.status_code == 405:
            # FastAPI names the methods of the first route with this path alone.
            allowed = ", ".join(sorted(_methods(request)))
            text = f"{request.method} is not possible here; possible: {allowed}. See /openapi.json."
            answered = told(request, SempError("NOT_SUPPORTED", text, 405))
            answered.headers["Allow"] = allowed
            return answered
        if status := {408: "INVALID_PARAMETER", 413: "INVALID_PARAMETER", 503: "FAIL"}.get(error.status_code):
            return told(request, SempError(status, error.detail, error.status_code))
        if error.status_code == 400:
            return told(request, SempError("PARSE_ERROR", f"The body cannot be read as JSON. {_OBJECT}"))
        text = "There is no such resource; see /openapi.json. In names, a `/` is written %2F."
        return told(request, SempError("NOT_FOUND", text, error.status_code))

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        kinds = {_KIND_OF.get(one["type"], "INVALID_PARAMETER") for one in error.errors()}
        status = kinds.pop() if len(kinds) == 1 else "INVALID_PARAMETER"
        # A parameter that the check of the right reads as well is in it twice.
        sentences = dict.fromkeys(_sentence(request, one) for one in error.errors())
        return told(request, SempError(status, " ".join(sentences)))


def _methods(request: Request) -> set[str]:
    """The methods of the resource that a request is about."""
    path = request.scope["path"]
    return {
        method
        for route in request.app.routes
        if isinstance(route, Route) and route.path_regex.fullmatch(path)
        for method in route.methods or ()
    }


_OBJECT: Final = "The body has to be a JSON object, with Content-Type: application/json."

_KIND_OF: Final = {"json_invalid": "PARSE_ERROR", "missing": "MISSING_PARAMETER"}


def _sentence(request: Request, error: Any) -> str:
    place = ".".join(str(part) for part in error["loc"] if part not in ("body", "query", "path"))
    if error["type"] == "extra_forbidden":
        return f"Unknown attribute {place[:80]!r}; allowed here: {', '.join(_attributes(request))}."
    if error["type"] == "missing":
        return f"The attribute {place!r} is missing." if place else _OBJECT
    if error["type"] == "json_invalid":
        return f"The body is not JSON: {error['ctx']['error']}."
    if not place:
        return _OBJECT
    return f"The attribute {place[:80]!r} is wrong: {error['msg'].removeprefix('Value error, ').rstrip('.')}."


def _attributes(request: Request) -> list[str]:
    field = getattr(request.scope.get("route"), "body_field", None)
    model = getattr(getattr(field, "field_info", None), "annotation", None)
    return list(getattr(model, "model_fields", ()))


class Body(BaseModel):
    """The body of a request: attributes with their types, and no others."""

    model_config = ConfigDict(extra="forbid", strict=True, use_attribute_docstrings=True)


class InVpn(TypedDict):
    """The attribute that every resource of a Message VPN has."""

    msgVpnName: str


class Shown(Generic[T]):
    """
    What is shown of an object of type T.

    Attributes:
        types: The type of each attribute, by its name.
    """

    def __init__(self, attributes: Mapping[str, tuple[Any, Callable[[T], Any]]]) -> None:
        """
        Args:
            attributes: By name, the attribute's type and the function that reads its value from the object.
        """
        self.types = {name: kind for name, (kind, _) in attributes.items()}
        self._attributes = attributes

    def of(self, thing: T) -> dict[str, Any]:
        """The attributes of an object with their values, in order."""
        return {name: read(thing) for name, (_, read) in self._attributes.items()}


def resource(name: str, *sources: type | Shown[Any], **more: Any) -> type:
    """
    Make a type of this name with the attributes of all ``sources`` (models of bodies, typed dictionaries, ``Shown``),
    and with ``more`` attributes of the types given.
    """
    found: dict[str, Any] = {}
    for source in sources:
        if isinstance(source, Shown):
            found |= source.types
        elif issubclass(source, BaseModel):
            found |= _of_body(source)
        else:
            found |= get_type_hints(source, include_extras=True)
    make: Any = TypedDict  # mypy accepts it only with literal attributes
    made: type = make(name, found | more, total=False)
    made.__pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[attr-defined]
    return made


def one(kind: type) -> Callable[[], Responses]:
    """Documents an answer with one such resource."""
    return lambda: _documented(kind.__name__, {"data": kind, "links": dict[str, str]})


def listed(kind: type) -> Callable[[], Responses]:
    """Documents an answer with a page of such resources."""
    return lambda: _documented(f"{kind.__name__}List", {"data": list[kind], "links": list[dict[str, str]]})  # type: ignore[valid-type]


def _documented(name: str, fields: Mapping[str, Any]) -> Responses:
    types: Any = {field: (kind, ...) for field, kind in fields.items()}
    return {200: {"model": create_model(f"{name}Answer", __base__=Answer, **types)}}


def done() -> Responses:
    """Documents an answer without data."""
    return _documented("Done", {"data": None, "links": dict[str, str]})


def _of_body(model: type[BaseModel]) -> dict[str, Any]:
    return {
        name: Annotated[_without_none(info.annotation), Field(description=info.description)]
        for name, info in model.model_fields.items()
    }


def _without_none(kind: Any) -> Any:
    """The type without None: a body may leave out an attribute, an answer always has it."""
    if get_origin(kind) in (Union, UnionType):
        return reduce(or_, (part for part in get_args(kind) if part is not NoneType))
    return kind
