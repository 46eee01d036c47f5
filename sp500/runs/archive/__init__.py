"""A second place for a run, on a disk or in an object store, that outlives the machine it runs on."""
