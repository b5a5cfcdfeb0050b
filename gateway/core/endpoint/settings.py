"""The definition of an endpoint: its kind, who may consume from it at once, and the settings that are kept with it."""

from __future__ import annotations

import enum
import json
from dataclasses import asdict, dataclass


class EndpointKind(enum.Enum):
    """A queue and a topic endpoint hold references to messages; a stream is a named view of the log and holds none."""

    QUEUE = "queue"
    TOPIC_ENDPOINT = "topic-endpoint"
    STREAM = "stream"


class Exclusivity(enum.Enum):
    """Who may consume: anyone in turns (NONE), or one flow, the others waiting, refused, or taking over."""

    NONE = "none"
    WAIT = "wait"
    REFUSE = "refuse"
    STEAL = "steal"


@dataclass(slots=True)
class EndpointSettings:
    """What is kept of an endpoint's definition. Limits of 0 mean none; sizes in bytes."""

    exclusive: Exclusivity = Exclusivity.NONE
    temporary: bool = False
    quota_bytes: int = 0
    quota_messages: int = 0
    default_start: str = ""
    max_redelivery: int = 0
    """Redeliveries after which a message goes to the dead message queue; 0 is no bound."""
    dead_message_queue: str = ""
    """Where messages go that expired, were rejected, or failed too often; empty when they are discarded."""
    max_message_bytes: int = 0
    """Largest message that is taken, in bytes of content."""
    max_ttl_ms: int = 0
    """Milliseconds after which a message expires here, whatever its header says; 0 leaves it to the header."""
    max_flows: int = 0
    """Consumers bound at once."""
    max_unsettled: int = 0
    """Deliveries a consumer may leave unsettled; 0 is the gateway's limit."""
    priorities: bool = False
    """Whether messages of a higher priority (0 to 9) overtake others."""
    no_local: str = ""
    """Origin (see ``Origins``) whose messages are not put here; empty takes everybody's."""
    auto_delete: bool = False
    """Whether it goes when its last consumer has gone. One that never had any stays."""
    declared: bool = False
    """Named in the configuration: not deleted by a client."""
    purged_below: int = 0
    """Of a stream: the first id that is in its view, since an administrator purged it."""
    purged_ms: int = 0
    """Of a stream that was purged: from this time on its view is whole; ms since the epoch."""

    def to_json(self) -> str:
        return json.dumps({**asdict(self), "exclusive": self.exclusive.value})

    @classmethod
    def from_json(cls, text: str) -> EndpointSettings:
        fields = json.loads(text)
        fields["exclusive"] = Exclusivity(fields["exclusive"])
        return cls(**fields)
