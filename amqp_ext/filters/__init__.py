"""The filter-set of a source, and AMQP's own property filters."""
