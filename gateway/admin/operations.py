"""Operations of the administration: each is declared with the right that it needs, and built at its first request.

FastAPI takes milliseconds to build a route: it makes schemas of parameters and answers. There are more than eighty
routes; the first client that connects needs a handful, and would have to wait for all. So a declared route has only its
path, its method and its right. The rest is built at its first request; the schemas of its answers, which only the
OpenAPI document needs, are made for that document.
"""

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from inspect import Parameter, Signature, signature
from typing import Any, Final, TypeAlias, TypeVar

from fastapi import Depends, FastAPI, Request, Response, params
from fastapi.dependencies.models import Dependant
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from gateway.admin.rights import Right
from gateway.admin.semp.envelope import (
    REFUSALS,
    ROOT,
    Answer,
    Responses,
    SempError,
    answer,
    done,
    listed,
    one,
)
from gateway.admin.semp.paging import Pages

F = TypeVar("F", bound=Callable[..., Any])

Answers: TypeAlias = Responses | Callable[[], Responses]
"""What the OpenAPI document says of answers, or a function that makes it."""


_making: Final = threading.Lock()
"""One route is built at a time: FastAPI suppresses warnings of pydantic meanwhile, in the whole process."""


class LazyRoute(Route):
    """
    A route of FastAPI that is built at its first request.

    Args:
        right: The right that it needs; None for a route that is open to everybody.
        dependencies: Dependencies that run before its function.
        answers: What the document says of its answers; later entries replace earlier ones.
        declared: All else that an ``APIRoute`` takes.
    """

    def __init__(
        self,
        path: str,
        endpoint: Callable[..., Any],
        method: str,
        right: Right | None = None,
        *,
        dependencies: Sequence[params.Depends] = (),
        answers: Sequence[Answers] = (),
        **declared: Any,
    ) -> None:
        super().__init__(path, endpoint, methods=[method])
        self.methods = {method}  # Starlette adds HEAD to GET; FastAPI does not
        self.right = right
        self.dependencies = [*dependencies, *([Depends(right.check)] if right is not None else [])]
        self.app = self._answer
        self._answers = answers
        self._declared = declared
        self._made: APIRoute | None = None

    def documented(self) -> APIRoute:
        """The route, with all that the OpenAPI document says of it."""
        responses: Responses = {}
        for answers in self._answers:
            responses |= answers() if callable(answers) else answers
        return self._make(responses)

    def _make(self, responses: Responses | None = None) -> APIRoute:
        with _making:
            made = APIRoute(
                self.path,
                self.endpoint,
                methods=self.methods,
                dependencies=self.dependencies,
                responses=responses,
                **self._declared,
            )
        made.description = ""  # FastAPI would take the docstring, which is the summary already
        return made

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        made = self._made
        if made is None:
            # On a thread, as the loop has others to serve. Two first requests at the same time build two: one is lost.
            made = self._made = await asyncio.get_running_loop().run_in_executor(None, self._make)
        scope["route"] = made
        await made.app(scope, receive, send)


async def only_known(request: Request) -> None:
    """
    A dependency that refuses a parameter of the query which the operation does not take: where a misspelt one was
    ignored, so would be what it limits.

    Raises:
        SempError: INVALID_PARAMETER, there is such a parameter.
    """
    known = set(_parameters(request.scope["route"].dependant))
    for name in request.query_params:
        if name not in known:
            allowed = ", ".join(sorted(known))
            raise SempError("INVALID_PARAMETER", f"Unknown parameter {name[:80]!r}; allowed here: {allowed}.")


def _parameters(taker: Dependant) -> Iterator[str]:
    """The names of the parameters of the query that an operation and its dependencies take."""
    yield from (parameter.alias for parameter in taker.query_params)
    for dependency in taker.dependencies:
        yield from _parameters(dependency)


class LazyRouter:
    """
    Operations under a path, declared as with FastAPI's ``APIRouter``.

    Args:
        prefix: The beginning of all their paths.
        dependencies: Dependencies of each operation.
        answers: What the document says of the answers of each operation.
    """

    def __init__(
        self,
        prefix: str = "",
        *,
        tags: Sequence[str],
        dependencies: Sequence[params.Depends] = (),
        answers: Answers | None = None,
    ) -> None:
        self.routes: list[LazyRoute] = []
        self._prefix = prefix
        self._tags = list(tags)
        self._dependencies = dependencies
        self._answers = [answers] if answers is not None else []

    def operation(
        self,
        method: str,
        path: str,
        right: Right | None,
        *,
        summary: str | None = None,
        responses: Answers | None = None,
        **declared: Any,
    ) -> Callable[[F], F]:
        """
        Declare an operation: a decorator of the function that does it.

        Args:
            right: The right that it needs; None for an operation that is open to everybody.
            summary: What it does, for the documents; without it, the sentence that is the function's docstring.
            declared: All else that an ``APIRoute`` takes.
        """

        def declare(endpoint: F) -> F:
            self.routes.append(
                LazyRoute(
                    self._prefix + path,
                    endpoint,
                    method,
                    right,
                    dependencies=self._dependencies,
                    answers=[*self._answers, *([responses] if responses is not None else [])],
                    tags=self._tags,
                    summary=summary or " ".join((endpoint.__doc__ or "").split()).removesuffix("."),
                    **declared,
                )
            )
            return endpoint

        return declare


class Tree(LazyRouter):
    """
    Operations on SEMP resources: each method declares one, as a decorator of the function that does it (``operation``).

    Args:
        tree: ``config``, ``monitor`` or ``action``.
        path: The beginning of the resources' paths, under the tree.
    """

    def __init__(self, tree: str, path: str = "/msgVpns/{vpn}") -> None:
        super().__init__(f"{ROOT}/{tree}{path}", tags=[tree], answers=REFUSALS)

    def get(self, path: str, right: Right, shown: type, **declared: Any) -> Callable[[F], F]:
        """Show one resource, or the attributes of it that ``select`` names."""
        return self._in_envelope("GET", path, right, one(shown), selects=True, **declared)

    def file(self, path: str, right: Right, answers: Responses) -> Callable[[F], F]:
        """Answer with content that is not JSON."""
        return self.operation("GET", path, right, responses=answers, response_class=Response)

    def list(self, path: str, right: Right, shown: type, **declared: Any) -> Callable[[F], F]:
        """Show a page of resources."""
        return self.operation("GET", path, right, responses=listed(shown), **declared)

    def post(self, path: str, right: Right, shown: type) -> Callable[[F], F]:
        """Create a resource, and show it."""
        return self._in_envelope("POST", path, right, one(shown))

    def put(self, path: str, right: Right, shown: type | None = None, **declared: Any) -> Callable[[F], F]:
        """Carry out an action, and show its result; as at Solace, actions are PUT."""
        return self._in_envelope("PUT", path, right, done if shown is None else one(shown), **declared)

    def patch(self, path: str, right: Right, shown: type) -> Callable[[F], F]:
        """Change the attributes that the body names, and show the resource."""
        return self._in_envelope("PATCH", path, right, one(shown))

    def delete(self, path: str, right: Right) -> Callable[[F], F]:
        """Delete a resource."""
        return self._in_envelope("DELETE", path, right, done)

    def _in_envelope(
        self,
        method: str,
        path: str,
        right: Right,
        answers: Answers,
        *,
        selects: bool = False,
        **declared: Any,
    ) -> Callable[[F], F]:
        """
        Declare a function that returns the attributes to be shown, or None; the answer has them in the envelope.
        """
        declare = self.operation(method, path, right, responses=answers, **declared)
        kinds = {"request": Request, **({"paging": Pages} if selects else {})}
        more = {
            name: Parameter(name, Parameter.KEYWORD_ONLY, annotation=kind) for name, kind in kinds.items()
        }

        def declare_answered(endpoint: F) -> F:
            asked = signature(endpoint).parameters

            async def answered(**given: Any) -> Answer:
                found = await endpoint(**{name: given[name] for name in asked})
                return answer(given["request"], given["paging"].shown(found) if selects else found)

            parameters = more | {
                name: one.replace(kind=Parameter.KEYWORD_ONLY) for name, one in asked.items()
            }
            answered.__signature__ = Signature([*parameters.values()], return_annotation=Answer)  # type: ignore[attr-defined]
            answered.__name__, answered.__doc__ = endpoint.__name__, endpoint.__doc__
            declare(answered)
            return endpoint

        return declare_answered


def openapi_document(app: FastAPI) -> dict[str, Any]:
    """What ``app.openapi()`` returns. All routes are built for it, which takes a fifth of a second."""
    routes: list[BaseRoute] = [
        route.documented() if isinstance(route, LazyRoute) else route for route in app.routes
    ]
    return get_openapi(
        title=app.title, version=app.version, openapi_version=app.openapi_version, routes=routes
    )
