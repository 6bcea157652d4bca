"""The schema: whether a change may be made, what it would do, and how other sets come to have it.

`driver` logs a change on the metadata set's leader, once `losses` has asked who has the records
what it would drop; `pusher` brings it to the leaders of other sets, where `adopter` logs it. These
four are on the event loop. `document_set` reads files, for whoever has some; all else is pure.
`validation` and `diff.plan` serve the node that owns the schema, which gets objects and not text.
What reads and writes one document's YAML is in `model.documents`.
"""
