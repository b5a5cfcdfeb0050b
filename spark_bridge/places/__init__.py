"""
Where a replay log may be, and how it is read from there: one ``LogPlace`` for each way.

Reading order: ``log_place`` (what all places have in common), ``broker_place`` (over AMQP), ``stored_log`` with
``file_place`` (a gateway's file on this host) and ``database_place`` (PostgreSQL), ``archive_place`` (an archive, with
or without its log), ``from_options``. Nothing here needs Spark.
"""
