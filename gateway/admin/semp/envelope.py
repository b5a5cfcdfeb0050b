"""What every answer is wrapped in: `{data, links, meta}`, and how an error is told.

Invariant: whatever goes wrong with a request to these resources is answered in the same shape, and says which
attribute was wrong and what is allowed. As Solace does, a client's error is status 400, whichever it is: the code in
`meta.error` tells them apart.
"""

import re
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from amqp_ext.addresses import AddressError
from amqp_ext.replay_start import ReplayStartError
from amqp_ext.topics import TopicSyntaxError
from gateway.core.errors import ErrorCode, Refused

ROOT: Final = "/SEMP/v2"

CODES: Final = {
    "NOT_FOUND": 6,
    "ALREADY_EXISTS": 10,
    "INVALID_PARAMETER": 11,
    "UNAUTHORIZED": 72,
    "NOT_ALLOWED": 89,
    "INTERNAL": 1,
}
"""Error codes by their status."""


_CHALLENGES: Final = 'Basic realm="rewind", charset="UTF-8", Bearer realm="rewind"'
"""How one may log in, as RFC 9110 section 11.6.1 lists it."""


class SempError(Exception):
    """A request that is not carried out. Its text is one sentence."""

    def __init__(self, status: str, text: str, http_status: int = 400) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.http_status = http_status


class Meta(BaseModel):
    """About the answer."""

    responseCode: int = 200
    request: dict[str, str]
    count: int | None = None
    paging: dict[str, str] | None = None
    error: dict[str, Any] | None = None


class Answer(BaseModel):
    """One object, or a list of them."""

    data: dict[str, Any] | list[dict[str, Any]] | None = None
    links: dict[str, str] | list[dict[str, str]] | None = None
    meta: Meta


def answer(request: Request, data: dict[str, Any] | None = None) -> Answer:
    """One object, or, for an action, that it is done."""
    return Answer(data=data, links={"uri": str(request.url)}, meta=_meta(request))


def _meta(request: Request, status: int = 200) -> Meta:
    return Meta(responseCode=status, request={"method": request.method, "uri": str(request.url)})


def list_answer(
    request: Request, page: list[dict[str, Any]], cursor: str | None, total: int | None = None
) -> Answer:
    """A page of a list; `cursor` is where the next one begins, `total` how many objects there are."""
    meta = _meta(request)
    meta.count = total
    if cursor is not None:
        following = request.url.include_query_params(cursor=cursor)
        meta.paging = {"cursorQuery": cursor, "nextPageUri": str(following)}
    return Answer(data=page, links=[], meta=meta)


_STATUS_OF: Final = {
    ErrorCode.NOT_FOUND: "NOT_FOUND",
    ErrorCode.INVALID_FIELD: "INVALID_PARAMETER",
    ErrorCode.UNKNOWN_START: "INVALID_PARAMETER",
}


_EXISTS: Final = re.compile("exists already|has the subscription")


def refusal(refused: Refused) -> SempError:
    """What a refused command is to who asked over HTTP."""
    if refused.code is ErrorCode.INTERNAL:
        return SempError("INTERNAL", refused.text, 503)
    if refused.code is ErrorCode.PRECONDITION_FAILED and _EXISTS.search(refused.text):
        return SempError("ALREADY_EXISTS", refused.text)
    return SempError(_STATUS_OF.get(refused.code, "NOT_ALLOWED"), refused.text)


def _told(request: Request, error: SempError, **more: Any) -> JSONResponse:
    meta = _meta(request, error.http_status)
    meta.error = {"code": CODES[error.status], "description": error.text, "status": error.status, **more}
    headers = {"WWW-Authenticate": _CHALLENGES} if error.http_status == 401 else None
    return JSONResponse(
        {"meta": meta.model_dump(exclude_none=True)}, status_code=error.http_status, headers=headers
    )


def tell_errors(app: FastAPI) -> None:
    """Have the errors of these resources told in their shape."""

    @app.exception_handler(SempError)
    async def semp_error(request: Request, error: SempError) -> JSONResponse:
        return _told(request, error)

    @app.exception_handler(Refused)
    async def refused(request: Request, error: Refused) -> JSONResponse:
        more: dict[str, Any] = {}
        if error.code.replay_error is not None:
            more = {"replayError": error.code.replay_error, "subcode": error.code.subcode}
        return _told(request, refusal(error), **more)

    @app.exception_handler(TopicSyntaxError)
    @app.exception_handler(ReplayStartError)
    @app.exception_handler(AddressError)
    async def bad_text(request: Request, error: ValueError) -> JSONResponse:
        return _told(request, SempError("INVALID_PARAMETER", str(error)))

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        return _told(
            request, SempError("INVALID_PARAMETER", " ".join(_sentence(request, e) for e in error.errors()))
        )


def _sentence(request: Request, error: Any) -> str:
    place = ".".join(str(part) for part in error["loc"] if part not in ("body", "query", "path"))
    if error["type"] == "extra_forbidden":
        return f"Unknown attribute {place[:80]!r}; allowed here: {', '.join(_attributes(request))}."
    if error["type"] == "missing":
        return f"The attribute {place!r} is missing." if place else "A JSON object is expected as body."
    if error["type"] == "json_invalid":
        return f"The body is no JSON: {error['ctx']['error']}."
    return f"The attribute {place[:80]!r} is wrong: {error['msg'].removeprefix('Value error, ')}."


def _attributes(request: Request) -> list[str]:
    field = getattr(request.scope.get("route"), "body_field", None)
    model = getattr(getattr(field, "field_info", None), "annotation", None)
    return list(getattr(model, "model_fields", ()))
