"""
Keys of the gateway's log lines, each in one spelling, so that a search finds every line about a thing.

Times and sizes carry their unit. A key is added here before it is used.
"""

from typing import Final

# Who and where
VPN: Final = "vpn"  # the Message VPN
PEER: Final = "peer"  # the client's HOST:PORT
CONNECTION: Final = "connection"  # our number for it, unique while the process lives
CONTAINER: Final = "container"  # the client's container-id
USER: Final = "user"  # the user; `anonymous` for a client without a name
MECHANISM: Final = "mechanism"  # SASL mechanism
LINK: Final = "link"  # the link's name

# What about
ADDRESS: Final = "address"  # as the client wrote it
ENDPOINT: Final = "endpoint"  # the queue, stream or topic endpoint
TOPIC: Final = "topic"  # the topic, or the pattern of topics

# Several gateways
ACTIVE: Final = "active"  # HOST:PORT of the gateway that has the store

# Replay and its log
REPLAY: Final = "replay"  # a replay's name
REPLAY_STATE: Final = "replay_state"  # the state that a replay has reached
START: Final = "start"  # the start as requested
OFFSET: Final = "offset"  # the id that a search has reached
FIRST: Final = "first"  # the first id
LAST: Final = "last"  # the last id
UNTIL: Final = "until"  # the last id to be sent

# Alarms
ALARM: Final = "alarm"  # the kind of alarm
THRESHOLD_PERCENT: Final = "threshold_percent"  # the part of the limit that was reached

# Administration
OPERATION: Final = "operation"  # what a user asked of the administration
BODY: Final = "body"  # the beginning of the request's body

# What came of it
STATUS: Final = "status"  # the HTTP status of the answer
APPLIED: Final = "applied"  # settings that were changed
REFUSED: Final = "refused"  # settings that were not changed
CONDITION: Final = "condition"  # AMQP error condition
REPLAY_ERROR: Final = "replay_error"  # as the client is told
REASON: Final = "reason"  # a sentence
RULE: Final = "rule"  # the permission of the user that decided
LIMIT: Final = "limit"  # the name of the limit that was reached
MESSAGES: Final = "messages"  # how many
IDS: Final = "ids"  # which messages
HELD_BACK: Final = "held_back"  # lines of this kind that were left out before this line
LINES: Final = "lines"  # lines that were lost
UNKNOWN: Final = "unknown"  # messages for which the selector would have taken too long
ELAPSED_MS: Final = "elapsed_ms"  # the duration in milliseconds

# The process
DATA: Final = "data"  # the data folder
ENGINE: Final = "engine"  # the store's database, with its version
WIRE_LOOPS: Final = (
    "wire_loops"  # native, or python and why: which loops do the work for each message on the wire
)
URL: Final = "url"  # where clients connect
