"""Transactions: what is prepared here, what was decided, what they hold until they are over."""
