"""The connector behind `.format("hadron")`: options, offset ranges, filters, readers.

Runs in Spark's Python workers, which start one process per few tasks: it imports the client and
nothing of the server.
"""
