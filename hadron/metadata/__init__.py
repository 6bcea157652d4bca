"""The schema: documents that users write, the checks on them, and what a change would do.

Everything but the `driver`, which logs a change on the leader, is pure. `validation` and
`diff.plan` serve the node that owns the schema, which gets objects and not text; `documents` and
`rendering` serve whoever reads and writes YAML.
"""
