"""Files: one SQLite database per node and a tiny one for its identity and promises.

The only room that knows apsw. One connection writes per file; everything else reads. The layout
of both files is documented in `FORMAT.md` beside this module, as a promise.
"""
