"""
Topics and subscriptions as Solace defines them, and the index that finds who subscribed to a topic.

``topic`` is what may be published to, ``pattern`` a subscription, ``trie`` the index of many subscriptions, and
``topic_filter`` several that are asked as one. Others import this package alone.

Sources: Solace documentation, "SMF Topics", "Wildcard Characters in Topic Subscriptions", "System-Level
Subscription Exception Configuration".
"""

from amqp_ext.topics.pattern import LevelKind, PatternLevel, TopicPattern
from amqp_ext.topics.topic import (
    MAX_TOPIC_BYTES,
    MAX_TOPIC_LEVELS,
    TopicSyntaxError,
    check_topic,
    is_reserved,
)
from amqp_ext.topics.topic_filter import TopicFilter
from amqp_ext.topics.trie import REMEMBERED_KEYS, REMEMBERED_TOPICS, SubscriptionTrie

__all__ = [
    "MAX_TOPIC_BYTES",
    "MAX_TOPIC_LEVELS",
    "REMEMBERED_KEYS",
    "REMEMBERED_TOPICS",
    "LevelKind",
    "PatternLevel",
    "SubscriptionTrie",
    "TopicFilter",
    "TopicPattern",
    "TopicSyntaxError",
    "check_topic",
    "is_reserved",
]
