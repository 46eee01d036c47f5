"""Job queue: SQLite ledger, manager process, client."""
