"""A gateway of a future version: its tables are those of this version and one more index."""

from gateway.cli import main
from store.postgresql import schema as postgresql
from store.sqlite import schema as sqlite

STEP = "m999_of_the_next_version"

if __name__ == "__main__":
    for migrations in (postgresql.MIGRATIONS, sqlite.MIGRATIONS):
        migrations[STEP] = ("create index endpoint_kind on endpoint (kind)",)  # type: ignore[index]
    main()
