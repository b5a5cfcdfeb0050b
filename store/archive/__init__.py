"""
The archive of a replay log: Parquet files by id range, and a manifest that says which of them count.

Reading order: ``storage`` (where the files lie, and how one becomes durable), ``manifest`` (what the archive is),
``columns`` and ``segment`` (one file: its columns, writing, reading), ``source`` and ``archiver`` (from the log to the
archive), ``compaction`` (many small files to one a day).

Nothing here needs Spark, the gateway or its database: pyarrow is enough, which is an extra of the distribution.
"""
