"""Rewind compared with other brokers: one after the other, on the same disk and under the same load.

``python -m tests.bench.peers`` (or ``./run bench peers``) makes an instance of each in a temporary folder,
configured as its documentation says for messages that survive a power cut, and prints a table in Markdown; ``--write``
puts it into the documentation. Artemis and Qpid Broker-J come from Maven Central; RabbitMQ must be installed.
"""
