"""The configuration that is in force."""

import asyncio
from functools import partial
from typing import Final

from fastapi import Request
from typing_extensions import TypedDict

from gateway.admin import rights
from gateway.admin.lazy_route import LazyRoute
from gateway.admin.semp.documented import one, resource
from gateway.admin.semp.envelope import Answer, answer
from gateway.admin.semp.paging import Pages
from gateway.admin.semp.resources import resources_of
from gateway.admin.semp.tree import Tree
from gateway.config import effective_toml


class _Configuration(TypedDict):
    toml: str


CONFIGURATION: Final = resource("Configuration", _Configuration)


def configuration_routes() -> list[LazyRoute]:
    """``/monitor/configuration``."""
    tree = Tree("monitor", "/configuration")

    @tree.get(
        "",
        rights.GATEWAY_SEEN,
        summary="All settings in force, with what administrators changed; secrets are left out",
        responses=one(CONFIGURATION),
    )
    async def configuration(request: Request, paging: Pages) -> Answer:
        settings = resources_of(request).vpns.settings
        # There may be thousands of queues in it.
        toml = await asyncio.get_running_loop().run_in_executor(None, partial(effective_toml, settings))
        return answer(request, paging.shown({"toml": toml}))

    return tree.routes
