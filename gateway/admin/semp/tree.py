"""The trees of resources, ``config``, ``monitor`` and ``action``: how an operation is declared, with what must be
permitted for it, and how it refuses.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from fastapi import Response
from fastapi.responses import JSONResponse

from gateway.admin.lazy_route import Answers, LazyRouter
from gateway.admin.rights import Right, needs
from gateway.admin.semp.envelope import REFUSALS, ROOT

F = TypeVar("F", bound=Callable[..., Any])


class Tree(LazyRouter):
    """Operations on the resources of one tree under a path. Each method declares one, as a decorator of what does it.

    Args:
        tree: ``config``, ``monitor`` or ``action``.
        path: Of the resources, under the tree's.
    """

    def __init__(self, tree: str, path: str) -> None:
        super().__init__(f"{ROOT}/{tree}{path}", tags=[tree], answers=REFUSALS)

    def get(self, path: str, right: Right, *, summary: str, responses: Answers) -> Callable[[F], F]:
        """Show it."""
        return self._operation("GET", path, right, summary, responses)

    def get_as_it_is(self, path: str, right: Right, *, summary: str, responses: Answers) -> Callable[[F], F]:
        """Give what is no JSON: the operation returns the answer itself."""
        return self._operation("GET", path, right, summary, responses, Response)

    def post(self, path: str, right: Right, *, summary: str, responses: Answers) -> Callable[[F], F]:
        """Make one."""
        return self._operation("POST", path, right, summary, responses)

    def put(self, path: str, right: Right, *, summary: str, responses: Answers) -> Callable[[F], F]:
        """Do it, as at Solace actions are."""
        return self._operation("PUT", path, right, summary, responses)

    def patch(self, path: str, right: Right, *, summary: str, responses: Answers) -> Callable[[F], F]:
        """Change what is named."""
        return self._operation("PATCH", path, right, summary, responses)

    def delete(self, path: str, right: Right, *, summary: str, responses: Answers) -> Callable[[F], F]:
        """Take it away."""
        return self._operation("DELETE", path, right, summary, responses)

    def _operation(
        self,
        method: str,
        path: str,
        right: Right,
        summary: str,
        responses: Answers,
        response_class: type[Response] = JSONResponse,
    ) -> Callable[[F], F]:
        return self.operation(
            method,
            path,
            summary=summary,
            dependencies=[needs(right)],
            responses=responses,
            response_class=response_class,
        )
