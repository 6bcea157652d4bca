"""HTTP: the same streams, groups, calls and messages for whatever speaks HTTP/1.1, h2c, or
CloudEvents.

A node imports this only when its configuration says `http:`. The rules are in docs/HTTP.md.
"""
