"""The replicated state: a module per feature, each its tables, its commands and its `apply`; those
that belong together in a package.

`apply` is a plain function from (context, command) to a result. It reads no clock, no
randomness, no network and nothing outside its own tables, so every replica that applies the same
entries holds the same tables (PROTOCOL A4).

Of a log, of replication and of an event loop this room knows nothing: whoever runs a command says
what number its entry has, and how bodies go (`machine.Context`). So the same tables and commands
stand in any SQLite file.
"""
