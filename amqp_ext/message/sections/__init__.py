"""
An encoded message cut into its sections, without decoding more than asked for (AMQP 1.0 section 3.2).

A message is a row of described values:

    header 70 | delivery-annotations 71 | message-annotations 72 | properties 73 | application-properties 74 |
    body: data 75, one or more, or amqp-sequence 76, one or more, or one amqp-value 77 | footer 78

All but the body may be absent. We also take properties without a body: proton sends that for a body None.

The first three may change at every hop. From properties to the end of the body is the bare message, which
nobody may touch. Invariant: everything here only reads. Offsets are found by jumping from size to size
(``boundaries``), and values are built only in the functions named after them (``contents``), or by ``view`` when they
are asked for. Whatever the bytes, all of them answer or raise ``MalformedMessage``. Others import this package alone.
"""

from amqp_ext.message.sections.boundaries import (
    AMQP_SEQUENCE,
    AMQP_VALUE,
    APPLICATION_PROPERTIES,
    DATA,
    DELIVERY_ANNOTATIONS,
    FOOTER,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    MalformedMessage,
    Section,
    bare_offset,
    bare_offsets,
    split,
    split_front,
    validate,
    walk,
)
from amqp_ext.message.sections.contents import (
    Body,
    Header,
    Properties,
    application_properties,
    body,
    message_annotations,
    properties,
    read_header,
    to_address,
)
from amqp_ext.message.sections.view import MessageView
from amqp_ext.message.sections.work import TooMuchWork

__all__ = [
    "AMQP_SEQUENCE",
    "AMQP_VALUE",
    "APPLICATION_PROPERTIES",
    "DATA",
    "DELIVERY_ANNOTATIONS",
    "FOOTER",
    "HEADER",
    "MESSAGE_ANNOTATIONS",
    "PROPERTIES",
    "Body",
    "Header",
    "MalformedMessage",
    "MessageView",
    "Properties",
    "Section",
    "TooMuchWork",
    "application_properties",
    "bare_offset",
    "bare_offsets",
    "body",
    "message_annotations",
    "properties",
    "read_header",
    "split",
    "split_front",
    "to_address",
    "validate",
    "walk",
]
