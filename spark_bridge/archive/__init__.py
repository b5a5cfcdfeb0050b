"""The archive of a replay log: Parquet files by id range, and a manifest that says which of them count.

Reading order: ``shelf`` (where the files lie, and how one becomes durable), ``manifest`` (what the archive is),
``segment`` (one file: its columns, writing, reading), ``archiver`` (from the log to the archive), ``compaction``
(many small files to one a day). ``spark_bridge.history`` reads a log and its archive as one.

Nothing here needs Spark, a gateway's code or its store: pyarrow is enough.
"""
