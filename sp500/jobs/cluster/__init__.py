"""Bringing a cluster up, and files to and from it."""
