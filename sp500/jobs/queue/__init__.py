"""The queue: its ledger, its manager, and those who ask it."""
