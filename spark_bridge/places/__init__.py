"""
Where a replay log may lie, and how it is read from there: one ``LogPlace`` for each way.

Reading order: ``log_place`` (what all have in common), ``selection`` (what is read of one), ``broker_log`` with
``log_link`` (over AMQP), ``file_log`` with ``log_file`` (a gateway's file on this host), ``archived_log`` (an archive,
with or without the log behind it), ``opened`` (from options to places). Nothing here needs Spark.
"""
