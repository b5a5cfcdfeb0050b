"""
Turns AMQP messages into columns in Arrow.

``record_batches`` makes record batches of pages of messages (``message_block.EncodedMessages``); it reads nearly all of
them side by side (``message_block``), and what is unusual one by one (``single_message``). The columns themselves are
in ``store.archive.columns``. Nothing here needs Spark.
"""
