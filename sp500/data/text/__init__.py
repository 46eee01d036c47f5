"""Text as bytes: where it comes from, how it is split, and how well plain counts and compressors predict it."""
