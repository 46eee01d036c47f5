"""Ray: the same experiments over N workers. The only science package that imports ray."""
