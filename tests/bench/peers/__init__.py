"""Rewind beside other brokers: each in turn, on the same disk, under the same load.

``python -m tests.bench.peers`` (or ``./run bench peers``) makes an instance of each in a temporary folder, as its
documentation has it for messages that survive a power cut, and prints a table in Markdown; ``--write`` puts it into
the documentation. Artemis and Qpid Broker-J come from Maven Central; RabbitMQ is measured where it is installed.
"""
