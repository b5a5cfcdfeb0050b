"""The port's adapter to PostgreSQL, for those who need two machines: ``store.postgresql.store`` opens it."""
