"""Exchanges on their leader: who is subscribed to what, and what is on its way to them."""
