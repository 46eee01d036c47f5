"""Run records: what was run, where, how it went. Plain data on disk; the platform and the science meet here."""
