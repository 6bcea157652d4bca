"""Sinks of bulk writers: what is staged until it is published, and how far queries are."""
