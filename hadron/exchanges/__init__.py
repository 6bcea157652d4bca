"""Exchanges on their leader: who is subscribed to what, and what is published on its way to them."""
