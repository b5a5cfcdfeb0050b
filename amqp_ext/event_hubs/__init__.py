"""
What the clients of Azure Event Hubs say and want beyond AMQP 1.0, as values and pure functions.

``forms`` is how they say what ours say, too. ``management`` reads what they ask the nodes ``$cbs`` and ``$management``
for into commands, and the tokens that come to the first. ``frames`` is what they need of frames, and a transfer with
several events.
"""
