"""
What carries an attached link: its connection's table of links, output and log.
"""

from __future__ import annotations

from typing import NamedTuple

from gateway.amqp.connection_log import ConnectionLog
from gateway.amqp.engine.link_table import LinkTable
from gateway.amqp.engine.output import Output


class Carrier(NamedTuple):
    """A connection as its links know it."""

    links: LinkTable
    output: Output
    log: ConnectionLog
