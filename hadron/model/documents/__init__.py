"""Schema documents: what users write to declare objects, read and judged object by object. Pure.

In `model`, because whoever has documents reads them: clients and commands, not the node that owns
the schema, which gets objects and judges them by the same `checks`, and whether they fit together.
"""
