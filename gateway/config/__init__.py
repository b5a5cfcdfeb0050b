"""Configuration: a tree of frozen values (``Settings``), how it is read from TOML, and how it is written back.

Read ``settings`` and ``vpn`` first: they list everything that can be set. ``load`` builds the tree and reports every
problem at once, ``problems`` has the rules over several settings, ``toml`` writes settings back, with comments for the
documentation, and ``changes`` says what can change while a gateway runs.
"""

from gateway.config.changes import Difference, Reloaded, reconcile
from gateway.config.load import Configuration, Overrides, parse, read
from gateway.config.problems import ConfigError
from gateway.config.setting_types import token_hash
from gateway.config.settings import (
    AdminListener,
    AlarmThresholds,
    IdentityProvider,
    Limits,
    LinkStealing,
    Listener,
    Logging,
    Settings,
    Telemetry,
    Tls,
    User,
    WebSocket,
    authority,
)
from gateway.config.toml import effective_toml
from gateway.config.vpn import Queue, ReplayLog, ReplayTarget, Vpn, VpnStore, masked

__all__ = [
    "AdminListener",
    "AlarmThresholds",
    "ConfigError",
    "Configuration",
    "Difference",
    "IdentityProvider",
    "Limits",
    "LinkStealing",
    "Listener",
    "Logging",
    "Overrides",
    "Queue",
    "Reloaded",
    "ReplayLog",
    "ReplayTarget",
    "Settings",
    "Telemetry",
    "Tls",
    "User",
    "Vpn",
    "VpnStore",
    "WebSocket",
    "authority",
    "effective_toml",
    "masked",
    "parse",
    "read",
    "reconcile",
    "token_hash",
]
