"""
The forms of vendors that hold on every listener: addresses, filters, mechanisms and link properties by which a client
that was written for another broker says what ours say, too.

This is the one place that names the vendors for those who read addresses and filters. What only some listeners speak is
composed from their settings, in the gateway.
"""

from __future__ import annotations

from typing import Final

from amqp_ext.addresses.forms import AddressForm
from amqp_ext.event_hubs.forms import CBS_MECHANISM, EPOCH, HUBS, from_position_selector
from amqp_ext.filters.forms import FilterForms, ReadSelectorStart
from amqp_ext.rabbitmq.forms import PATHS, STREAM_FILTERS

ADDRESS_FORMS: Final[tuple[AddressForm, ...]] = (PATHS, HUBS)
"""Addresses beside ours."""

ANONYMOUS_MECHANISMS: Final = (CBS_MECHANISM,)
"""SASL mechanisms that say as little of a peer as ANONYMOUS."""

EPOCH_PROPERTIES: Final[tuple[str, ...]] = (EPOCH,)
"""Properties of a link that say its epoch, a whole number, as the option ``epoch`` of an address does."""

FILTER_FORMS: Final[tuple[FilterForms, ...]] = (STREAM_FILTERS,)
"""Filters beside AMQP's and our own."""

SELECTOR_STARTS: Final[tuple[ReadSelectorStart, ...]] = (from_position_selector,)
"""Selectors that say where to start and select nothing."""
