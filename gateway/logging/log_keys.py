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
REPLAY_STATE: Final = "replay_state"  # the state that a replay came to
START: Final = "start"  # as asked for
OFFSET: Final = "offset"  # the id that a search has come to
FIRST: Final = "first"  # the first id
LAST: Final = "last"  # the last id
UNTIL: Final = "until"  # the last id that is to be sent

# Alarms
ALARM: Final = "alarm"  # what it is about
THRESHOLD_PERCENT: Final = "threshold_percent"  # the part of the limit that was reached

# Administration
OPERATION: Final = "operation"  # what an administrator asked for
BODY: Final = "body"  # the beginning of what came with it

# What came of it
STATUS: Final = "status"  # of the answer, as HTTP has it
APPLIED: Final = "applied"  # settings that were changed
REFUSED: Final = "refused"  # settings that were not
CONDITION: Final = "condition"  # AMQP error condition
REPLAY_ERROR: Final = "replay_error"  # as the client is told
REASON: Final = "reason"  # a sentence
RULE: Final = "rule"  # the user's rule that decided
LIMIT: Final = "limit"  # name of the setting that was reached
MESSAGES: Final = "messages"  # how many
IDS: Final = "ids"  # which messages
HELD_BACK: Final = "held_back"  # lines of this kind that were left out before this one
LINES: Final = "lines"  # lines that were lost
UNKNOWN: Final = "unknown"  # messages of which a selector would have taken too long
ELAPSED_MS: Final = "elapsed_ms"  # milliseconds it took

# The process
DATA: Final = "data"  # the data folder
ENGINE: Final = "engine"  # what keeps the data, with its version
WIRE_LOOPS: Final = "wire_loops"  # native, or python and why: what runs once a message on the wire
URL: Final = "url"  # where clients connect
