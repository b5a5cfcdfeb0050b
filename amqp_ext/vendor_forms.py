"""
The vendors' forms that every listener accepts: addresses, filters, mechanisms and link properties with which a client
that was written for another broker says the same as our own clients.

Only this module names the vendors to the readers of addresses and filters. Forms that only some listeners accept are
composed in the gateway, from the listeners' settings.
"""

from __future__ import annotations

from typing import Final

from amqp_ext.addresses.forms import AddressForm
from amqp_ext.event_hubs.forms import CBS_MECHANISM, EPOCH, HUBS, from_position_selector
from amqp_ext.filters.forms import FilterForms, ReadSelectorStart
from amqp_ext.rabbitmq.forms import PATHS, STREAM_FILTERS

ADDRESS_FORMS: Final[tuple[AddressForm, ...]] = (PATHS, HUBS)
"""Addresses in addition to ours."""

ANONYMOUS_MECHANISMS: Final = (CBS_MECHANISM,)
"""SASL mechanisms that identify a peer no more than ANONYMOUS does."""

EPOCH_PROPERTIES: Final[tuple[str, ...]] = (EPOCH,)
"""Link properties that give the link's epoch, a whole number, as the address option ``epoch`` does."""

FILTER_FORMS: Final[tuple[FilterForms, ...]] = (STREAM_FILTERS,)
"""Filters in addition to AMQP's and our own."""

SELECTOR_STARTS: Final[tuple[ReadSelectorStart, ...]] = (from_position_selector,)
"""Selectors that say where to start and select nothing."""
