"""The replicated state: one module per feature, each its tables, its commands and its `apply`.

`apply` is a plain function from (connection, command) to a result. It reads no clock, no
randomness, no network and nothing outside its own tables, so every replica that applies the same
entries holds the same tables (PROTOCOL A4).
"""
