"""A gateway with a planted error, which the fuzzer must find: an attach to a stream raises an unexpected exception."""

from __future__ import annotations

from collections.abc import Mapping

import amqp_ext.addresses.address as reader
from amqp_ext.addresses.address import read_options
from gateway.cli import main

PLANTED = "kind=stream"


def _read_options(query: str, address: str) -> Mapping[str, str]:
    if PLANTED in query:
        raise ZeroDivisionError("planted")
    return read_options(query, address)


if __name__ == "__main__":
    reader.read_options = _read_options  # type: ignore[attr-defined]
    main(prog_name="rewind")
