"""
What a consumer selects: what passes its filters, and with no-local what did not come from its own container.
"""

from __future__ import annotations

from collections.abc import Callable

from amqp_ext.filters.filter_set import Filters
from gateway import log_keys
from gateway.amqp.attach.client import Client
from gateway.core.model import ID, Row
from gateway.core.replay.reading import ReplayMark, compile_filters


def selection_of(
    client: Client, filters: Filters, link: str, mark: ReplayMark | None = None
) -> Callable[[Row], bool] | None:
    """
    What the consumer of a source is to be given: what passes its filters, and with no-local what did not come from
    its own container, as far as that is known (see ``Origins``). None when everything passes.

    Args:
        link: The consumer's, for the log.
        mark: What a reader's messages are given.

    Raises:
        Refused: INVALID_FIELD, with the place in the selector and the reason.
    """
    log = client.log

    def too_costly(row: Row) -> None:
        log.warning("selection_too_costly", **{log_keys.LINK: link, log_keys.FIRST: row[ID]})

    passes = compile_filters(filters, too_costly, mark)
    if not filters.no_local:
        return passes
    origins, own = client.vpn.origins, client.origin
    if client.is_connected:
        origins.watch(client)
    if passes is None:
        return lambda row: origins.of(row[ID]) != own
    return lambda row: origins.of(row[ID]) != own and passes(row)
