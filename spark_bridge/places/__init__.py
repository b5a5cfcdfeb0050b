"""
Where a replay log may lie, and how it is read from there: one ``LogPlace`` for each way.

Reading order: ``log_place`` (what all have in common), ``selection`` (what is read of one), ``broker_place`` with
``log_link`` (over AMQP), ``file_place`` with ``log_file`` and ``sqlite_reader`` (a gateway's file on this host),
``archive_place`` (an archive, with or without the log behind it), ``from_options``. Nothing here needs Spark.
"""
