"""Rewind's server: an AMQP 1.0 gateway whose messages can be replayed.

``core`` decides (pure), ``amqp`` speaks to clients, ``admin`` to administrators, ``app`` puts them together, ``cli``
starts it. This file imports nothing of ours, so that ``store`` can take values from ``gateway.core`` without bringing a
server along. Read ``app`` first, then ``core``.
"""


def version() -> str | None:
    """The version that is installed; None where it runs from a checkout alone."""
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415

    try:
        return version("rewind-gateway")
    except PackageNotFoundError:
        return None
