"""Operations of the administration, each made when it is first asked for.

FastAPI takes milliseconds to make a route: what it is asked and what it answers become schemas. There are more than
eighty, of which the first who connects needs a handful, and would wait for all. So a route knows from the start how it
is found and what must be permitted; the rest is made at its first request, and what only the OpenAPI document says of
its answers, for that.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

from fastapi import FastAPI, params
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

F = TypeVar("F", bound=Callable[..., Any])

Responses: TypeAlias = dict[int | str, dict[str, Any]]
"""What the OpenAPI document says of answers, as FastAPI takes it: by status."""

Answers: TypeAlias = Responses | Callable[[], Responses]
"""The same, or what makes it."""


class LazyRoute(Route):
    """
    A route of FastAPI that is made at its first request.

    Args:
        dependencies: What is asked before its own function is.
        answers: What the document says of them, later ones before earlier ones.
        declared: All else that an ``APIRoute`` takes.
    """

    def __init__(
        self,
        path: str,
        endpoint: Callable[..., Any],
        method: str,
        *,
        dependencies: Sequence[params.Depends] = (),
        answers: Sequence[Answers] = (),
        **declared: Any,
    ) -> None:
        super().__init__(path, endpoint, methods=[method])
        self.methods = {method}  # no HEAD comes with a GET: FastAPI has none, either
        self.dependencies = list(dependencies)
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
        return APIRoute(
            self.path,
            self.endpoint,
            methods=self.methods,
            dependencies=self.dependencies,
            responses=responses,
            **self._declared,
        )

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
        self._dependencies = list(dependencies)
        self._answers = [answers] if answers is not None else []

    def operation(
        self,
        method: str,
        path: str,
        *,
        summary: str,
        dependencies: Sequence[params.Depends] = (),
        responses: Answers | None = None,
        **declared: Any,
    ) -> Callable[[F], F]:
        """
        Declare one; a decorator of what does it.

        Args:
            declared: All else that an ``APIRoute`` takes.
        """

        def declare(endpoint: F) -> F:
            self.routes.append(
                LazyRoute(
                    self._prefix + path,
                    endpoint,
                    method,
                    dependencies=[*self._dependencies, *dependencies],
                    answers=[*self._answers, *([responses] if responses is not None else [])],
                    tags=self._tags,
                    summary=summary,
                    **declared,
                )
            )
            return endpoint

        return declare


def openapi_document(app: FastAPI) -> dict[str, Any]:
    """What ``app.openapi()`` is, of routes that are made for it; all of them are, which takes a fifth of a second."""
    routes: list[BaseRoute] = [
        route.documented() if isinstance(route, LazyRoute) else route for route in app.routes
    ]
    return get_openapi(
        title=app.title, version=app.version, openapi_version=app.openapi_version, routes=routes
    )
