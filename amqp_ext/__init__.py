"""
AMQP vocabulary beyond proton: types, sections, SASL, addresses, filters, selectors, replay starts.

Everything here is pure (bytes and plain values in and out: no sockets, clocks, proton or storage), so any
package may import it and it imports none of them. Read ``codec`` first, then ``sections``, then what you need.
"""
