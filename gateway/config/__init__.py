"""Configuration: a tree of frozen values (``Settings``), how it is read from TOML, and how it is written back.

Read ``settings`` first: it is the list of everything that can be set. ``load`` builds it and reports every
problem at once, ``rules`` has the rules over several settings, ``render`` writes the commented example that the
documentation shows.
"""

from gateway.config.bearer_tokens import new_token, token_hash
from gateway.config.files import hash_of_token, password_hash, sas_key
from gateway.config.limits import AlarmThresholds, Limits, Store
from gateway.config.load import NO_OVERRIDES, Configuration, Overrides, load, parse, read
from gateway.config.problems import ConfigError
from gateway.config.reload import Difference, Reloaded, reconcile
from gateway.config.render import effective_toml, example_toml
from gateway.config.replay_target import ReplayTarget
from gateway.config.setting_types import Mechanism, is_loopback
from gateway.config.settings import (
    AdminListener,
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
from gateway.config.vpn import Queue, ReplayLog, Vpn
from gateway.config.vpn_store import VpnStore, masked

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
