"""
AMQP on the wire: listeners, connections and links, on proton's engine, which is driven byte by byte on asyncio.

What happens once a link uses proton's public objects (``connection``, ``attach``, ``links``). What happens once a
message is in ``engine``, which alone calls the engine's C interface. Read ``connection`` first, then
``attach.attach``.
"""
