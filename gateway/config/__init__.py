"""Configuration: a tree of frozen values (``Settings``), how it is read from TOML, and how it is written back.

Read ``settings`` first: it is the list of everything that can be set. ``load`` builds it and reports every
problem at once, ``rules`` has the rules over several settings, ``render`` writes the commented example that the
documentation shows.
"""

from gateway.config.changes import Difference, Reloaded, reconcile
from gateway.config.load import (
    NO_OVERRIDES,
    Configuration,
    Overrides,
    hash_of_token,
    load,
    parse,
    password_hash,
    read,
    sas_key,
)
from gateway.config.problems import ConfigError
from gateway.config.setting_types import Mechanism, is_loopback, new_token, token_hash
from gateway.config.settings import (
    AdminListener,
    AlarmThresholds,
    Limits,
    LinkStealing,
    Listener,
    Logging,
    Settings,
    Store,
    Telemetry,
    Tls,
    User,
    WebSocket,
    authority,
)
from gateway.config.toml import effective_toml, example_toml
from gateway.config.vpn import Queue, ReplayLog, ReplayTarget, Vpn, VpnStore, masked

__all__ = [
    "NO_OVERRIDES",
    "AdminListener",
    "AlarmThresholds",
    "ConfigError",
    "Configuration",
    "Difference",
    "Limits",
    "LinkStealing",
    "Listener",
    "Logging",
    "Mechanism",
    "Overrides",
    "Queue",
    "Reloaded",
    "ReplayLog",
    "ReplayTarget",
    "Settings",
    "Store",
    "Telemetry",
    "Tls",
    "User",
    "Vpn",
    "VpnStore",
    "WebSocket",
    "authority",
    "effective_toml",
    "example_toml",
    "hash_of_token",
    "is_loopback",
    "load",
    "masked",
    "new_token",
    "parse",
    "password_hash",
    "read",
    "reconcile",
    "sas_key",
    "token_hash",
]
