"""Config of Message VPNs: made, changed and deleted; and the gateway's own configuration, read again."""

from typing import Any, Final

from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from gateway.admin import rights
from gateway.admin.lazy_route import LazyRoute
from gateway.admin.semp.documented import done, listed, one, resource
from gateway.admin.semp.envelope import Answer, SempError, answer, list_answer
from gateway.admin.semp.paging import Pages
from gateway.admin.semp.resources import Name, resources_of, vpn_of
from gateway.admin.semp.tree import Tree
from gateway.config import ConfigError
from gateway.vpn.message_vpn import MessageVpn
from gateway.vpn.role import WaitingVpn


class VpnBody(BaseModel):
    """What can change of a Message VPN while it runs."""

    model_config = ConfigDict(extra="forbid", strict=True)

    enabled: bool | None = Field(None, description="Off disconnects its clients, and lets none in.")
    createQueuesEnabled: bool | None = Field(None, description="Ours: whether first use makes a queue.")

    def changes(self) -> dict[str, Any]:
        """The same, by the settings' names."""
        named = {"enabled": self.enabled, "create_queues": self.createQueuesEnabled}
        return {key: value for key, value in named.items() if value is not None}


class NewVpn(VpnBody):
    """A Message VPN to be made: enabled, unless it says otherwise."""

    msgVpnName: str = Field(description="1 to 64 characters of A-Z a-z 0-9 . _ -")


class _Fixed(TypedDict):
    maxTopicBytes: int
    maxTopicLevels: int


class _Reloaded(TypedDict):
    applied: list[str]
    refused: list[str]


VPN: Final = resource("MsgVpn", NewVpn, _Fixed)
RELOADED: Final = resource("Reloaded", _Reloaded)


def _configured(vpn: MessageVpn | WaitingVpn) -> dict[str, Any]:
    return {
        "msgVpnName": vpn.name,
        "enabled": vpn.settings.enabled,
        "createQueuesEnabled": vpn.settings.create_queues,
        "maxTopicBytes": vpn.settings.max_topic_bytes,
        "maxTopicLevels": vpn.settings.max_topic_levels,
    }


def vpn_routes() -> list[LazyRoute]:
    """``/config/msgVpns`` and ``/config/msgVpns/{vpn}``."""
    tree = Tree("config", "/msgVpns")

    @tree.get("", rights.GATEWAY_SEEN, summary="All Message VPNs", responses=listed(VPN))
    async def vpns(request: Request, paging: Pages) -> Answer:
        vpns, waiting = resources_of(request).vpns, resources_of(request).waiting
        names = [*vpns, *waiting]

        def show(name: str) -> dict[str, Any] | None:
            found = vpns.get(name) or waiting.get(name)
            return None if found is None else _configured(found)

        page, cursor = await paging.page(names, show)
        return list_answer(request, page, cursor, len(names))

    @tree.post(
        "", rights.GATEWAY_CHANGED, summary="Make a Message VPN, with a file of its own", responses=one(VPN)
    )
    async def create(request: Request, body: NewVpn) -> Answer:
        vpn = await resources_of(request).vpns.create(body.msgVpnName, body.changes())
        return answer(request, _configured(vpn))

    @tree.get("/{vpn}", rights.WHOLE_VPN, summary="One Message VPN", responses=one(VPN))
    async def one_vpn(request: Request, vpn: Name, paging: Pages) -> Answer:
        return answer(request, paging.shown(_configured(vpn_of(request, vpn).vpn)))

    @tree.patch(
        "/{vpn}", rights.WHOLE_VPN, summary="Enable, disable or change a Message VPN", responses=one(VPN)
    )
    async def change(request: Request, vpn: Name, body: VpnBody) -> Answer:
        running = vpn_of(request, vpn).vpn
        await resources_of(request).vpns.change(vpn, body.changes())
        return answer(request, _configured(running))

    @tree.delete(
        "/{vpn}",
        rights.GATEWAY_CHANGED,
        summary="Delete a Message VPN that is disabled and empty, with its file",
        responses=done,
    )
    async def delete(request: Request, vpn: Name) -> Answer:
        vpn_of(request, vpn)
        await resources_of(request).vpns.delete(vpn)
        return answer(request)

    return tree.routes


def reload_routes() -> list[LazyRoute]:
    """``/action/reload``."""
    tree = Tree("action", "")

    @tree.put(
        "/reload",
        rights.GATEWAY_CHANGED,
        summary="Ours: read the configuration file again, and take what can change",
        responses=one(RELOADED),
    )
    async def reload(request: Request) -> Answer:
        try:
            reloaded = await resources_of(request).reload()
        except ConfigError as error:
            raise SempError(
                "NOT_ALLOWED", "Nothing was changed: " + "; ".join(error.problems) + "."
            ) from None
        return answer(
            request,
            {
                "applied": [str(difference) for difference in reloaded.applied],
                "refused": [str(difference) for difference in reloaded.refused],
            },
        )

    return tree.routes
