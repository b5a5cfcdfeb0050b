"""
The archive of a replay log: Parquet files by id range, and a manifest that says which of them count.

Reading order: ``storage`` (where the files lie, and how one becomes durable), ``manifest`` (what the archive is),
``columns`` and ``segments`` (its files: columns, writing, reading), ``source`` and ``archiver`` (from the log to the
archive, and many small files to one a day), ``erasures``.

Nothing here needs Spark, the gateway or its database: pyarrow is enough, which is an extra of the distribution.
"""
