"""
What jobs of a Message VPN are given from outside of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.core.model import ReplayRecord
from gateway.core.permissions import OPEN, Permissions
from gateway.vpn.jobs.remote_target import OpenRemote
from gateway.vpn.jobs.rights import PermissionsOf, why_not


def _everything(user: str, vpn: str) -> Permissions:
    return OPEN


@dataclass(frozen=True, slots=True)
class JobPorts:
    """
    Attributes:
        open_remote: Publishes copies at other gateways; where there is none, nobody does.
        permissions: What a user may do in a Message VPN now; everything, where nobody says.
    """

    open_remote: OpenRemote | None = None
    permissions: PermissionsOf = _everything

    def why_not(self, vpn: str, record: ReplayRecord) -> str:
        """Why a job of a Message VPN may not go on in its requester's name; empty where it may."""
        return why_not(record, self.permissions(record.requester, vpn))
