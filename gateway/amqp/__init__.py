"""
The wire: listeners, connections and links on proton's engine, which is driven here byte by byte on asyncio.

Everything that happens once a link uses proton's public objects (``connection``, ``attach``, ``links``); what happens
once a message is in ``engine``, which alone calls the engine's C interface. Read ``connection`` first, then
``attach.attach``.
"""
