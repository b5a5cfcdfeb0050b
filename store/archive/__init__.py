"""
The archive of a replay log: a Delta table, whose Parquet files hold ranges of ids.

Reading order: ``storage`` (where the files lie, and how one becomes durable), ``table`` (what the archive is),
``columns`` and ``segments`` (its files: columns, writing, reading), ``source`` and ``archiver`` (from the log to the
archive), ``maintenance`` (many small files to one a day, erasing, vacuum), ``erasures``.

Nothing here needs Spark, the gateway or its database: deltalake and pyarrow are enough, which are an extra of the
distribution.
"""
