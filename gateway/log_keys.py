"""Keys of the gateway's log lines, each in one spelling, so that a search finds every line about a thing.

Times and sizes carry their unit. A key is added here before it is used.
"""

from typing import Final

# Who and where
VPN: Final = "vpn"
PEER: Final = "peer"  # the client's HOST:PORT
CONNECTION: Final = "connection"  # our number for it, unique while the process lives
CONTAINER: Final = "container"  # the client's container-id
USER: Final = "user"
MECHANISM: Final = "mechanism"
LINK: Final = "link"  # the link's name

# What about
ADDRESS: Final = "address"
ENDPOINT: Final = "endpoint"
TOPIC: Final = "topic"

# Replay and its log
REPLAY_STATE: Final = "replay_state"
START: Final = "start"  # as asked for
OFFSET: Final = "offset"
FIRST: Final = "first"
LAST: Final = "last"
UNTIL: Final = "until"

# Alarms
ALARM: Final = "alarm"  # what it is about
THRESHOLD_PERCENT: Final = "threshold_percent"

# What came of it
APPLIED: Final = "applied"  # settings that were changed
REFUSED: Final = "refused"  # settings that were not
CONDITION: Final = "condition"  # AMQP error condition
REPLAY_ERROR: Final = "replay_error"
REASON: Final = "reason"
RULE: Final = "rule"  # the user's rule that decided
LIMIT: Final = "limit"  # name of the setting that was reached
MESSAGES: Final = "messages"
ELAPSED_MS: Final = "elapsed_ms"

# The process
DATA: Final = "data"
URL: Final = "url"
