"""What all resources have in common: where they are, that one must be permitted, how they refuse."""

from fastapi import APIRouter, Depends

from gateway.admin.access import require
from gateway.admin.semp.envelope import REFUSALS, ROOT


def tree_router(tree: str, path: str) -> APIRouter:
    """For the resources of `config`, `monitor` or `action` under a path."""
    return APIRouter(
        prefix=f"{ROOT}/{tree}{path}", tags=[tree], dependencies=[Depends(require)], responses=REFUSALS
    )
