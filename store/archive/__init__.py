"""
The archive of a replay log: a Delta table, whose Parquet files hold ranges of ids.

Reading order: ``storage`` (where the files are stored, and how a file becomes durable), ``table`` (its state and its
commits), ``columns`` and ``segments`` (its files: columns, writing, reading), ``source`` and ``archiver`` (from the log
to the archive), ``maintenance`` (compaction into one file a day, erasing, vacuum), ``erasures``.

Nothing here needs Spark, the gateway or its database: deltalake and pyarrow are enough. They are an extra of the
distribution.
"""
