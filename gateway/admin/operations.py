"""Operations of the administration: how one is declared, with the right that it needs, and made when it is first asked
for.

FastAPI takes milliseconds to make a route: what it is asked and what it answers become schemas. There are more than
eighty, of which the first client that connects needs a handful, and would wait for all. So a route knows from the start
how it is found and what must be permitted; the rest is made at its first request, and what only the OpenAPI document
says of its answers, for that.
"""

import asyncio
import threading
from collections.abc import Callable, Sequence
from inspect import Parameter, Signature, signature
from typing import Any, Final, TypeAlias, TypeVar

from fastapi import Depends, FastAPI, Request, Response, params
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from gateway.admin.rights import Right
from gateway.admin.semp.envelope import REFUSALS, ROOT, Answer, Responses, answer, done, listed, one
from gateway.admin.semp.paging import Pages

F = TypeVar("F", bound=Callable[..., Any])

Answers: TypeAlias = Responses | Callable[[], Responses]
"""What the OpenAPI document says of answers, or what makes it."""


_making: Final = threading.Lock()
"""One route is made at a time: FastAPI holds back warnings of pydantic's meanwhile, which is of the whole process."""


class LazyRoute(Route):
    """
    A route of FastAPI that is made at its first request.

    Args:
        right: What it needs to be permitted; None for one that is open to everybody.
        dependencies: What is asked before its own function is.
        answers: What the document says of them, later ones before earlier ones.
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
        self.methods = {method}  # no HEAD comes with a GET: FastAPI has none, either
        self.right = right
        self.dependencies = [*dependencies, *([Depends(right.check)] if right is not None else [])]
        self.app = self._answer
        self._answers = answers
        self._declared = declared
        self._made: APIRoute | None = None

    def documented(self) -> APIRoute:
        """One with all that the OpenAPI document says of it."""
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
        made.description = ""  # FastAPI would take the docstring, which is the summary
        return made

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        made = self._made
        if made is None:
            # On a thread, as the loop has others to serve. Two who ask at once make two: one is forgotten.
            made = self._made = await asyncio.get_running_loop().run_in_executor(None, self._make)
        scope["route"] = made
        await made.app(scope, receive, send)


class LazyRouter:
    """
    Operations under a path, declared as with FastAPI's ``APIRouter``.

    Args:
        prefix: Of all their paths.
        dependencies: What each is asked first.
        answers: What the document says of each.
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
        Declare one; a decorator of what does it.

        Args:
            right: What it needs to be permitted; None for one that is open to everybody.
            summary: What it does, for the documents; the sentence that is the function's docstring, if not given.
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
    Operations on SEMP resources: each method declares one, as a decorator of what does it (``operation``).

    Args:
        tree: ``config``, ``monitor`` or ``action``.
        path: Of the resources, under the tree's.
    """

    def __init__(self, tree: str, path: str = "/msgVpns/{vpn}") -> None:
        super().__init__(f"{ROOT}/{tree}{path}", tags=[tree], answers=REFUSALS)

    def get(self, path: str, right: Right, shown: type, **declared: Any) -> Callable[[F], F]:
        """Show one such, or what of it is named by ``select``."""
        return self._in_envelope("GET", path, right, one(shown), selects=True, **declared)

    def file(self, path: str, right: Right, answers: Responses) -> Callable[[F], F]:
        """Answer with what is no JSON."""
        return self.operation("GET", path, right, responses=answers, response_class=Response)

    def list(self, path: str, right: Right, shown: type, **declared: Any) -> Callable[[F], F]:
        """Show a page of such."""
        return self.operation("GET", path, right, responses=listed(shown), **declared)

    def post(self, path: str, right: Right, shown: type) -> Callable[[F], F]:
        """Make one, and show it."""
        return self._in_envelope("POST", path, right, one(shown))

    def put(self, path: str, right: Right, shown: type | None = None, **declared: Any) -> Callable[[F], F]:
        """Do it, and show what came of it: as at Solace, actions are PUT."""
        return self._in_envelope("PUT", path, right, done if shown is None else one(shown), **declared)

    def patch(self, path: str, right: Right, shown: type) -> Callable[[F], F]:
        """Change what is named, and show it."""
        return self._in_envelope("PATCH", path, right, one(shown))

    def delete(self, path: str, right: Right) -> Callable[[F], F]:
        """Take it away."""
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
        Declare a function that returns what is shown, or nothing where it is done; its answer is that in the envelope.
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
    """What ``app.openapi()`` is, of routes that are made for it; all of them are, which takes a fifth of a second."""
    routes: list[BaseRoute] = [
        route.documented() if isinstance(route, LazyRoute) else route for route in app.routes
    ]
    return get_openapi(
        title=app.title, version=app.version, openapi_version=app.openapi_version, routes=routes
    )
