"""Rewind's server: an AMQP 1.0 gateway whose messages can be replayed.

``core`` decides (pure), ``amqp`` speaks to clients, ``admin`` to administrators, ``app`` puts them together, ``cli``
starts it. This file imports nothing, so that ``store`` can take values from ``gateway.core`` without bringing a
server along. Read ``app`` first, then ``core``.
"""
