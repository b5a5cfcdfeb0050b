"""What a gateway is made of, imported as ``rewind serve`` does it: for processes that gateways come out of."""

import sys

from gateway.cli.command import NEVER_USED

for _name in NEVER_USED:
    sys.modules.setdefault(_name, None)  # type: ignore[arg-type] # as in a gateway

import gateway.admin.application  # noqa: E402 - at the first request over HTTP
import gateway.app  # noqa: E402, F401
