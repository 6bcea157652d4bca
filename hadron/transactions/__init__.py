"""Transactions over the partitions of many replica sets: all of their statements are done, or
none. One leader drives a transaction (`machine`, `driver`), others take part (`participant`)."""
