"""
What the clients of Azure Event Hubs say and want beyond AMQP 1.0, as values and pure functions.

``addresses``, ``wire_names`` and ``position_selector`` are how they say what ours say, too. ``requests`` reads what
they ask the nodes ``$cbs`` and ``$management`` for into ``commands``; ``shared_access`` are the tokens that come to the
first. ``event_batch`` is a transfer with several events. What these clients need of frames is in ``frame_cutter``,
``padding`` and ``incoming_frames``.
"""
