"""Remote calls: to call endpoints, and to serve them.

Start with `methods` for what programs call, `channel` and `serving` for what is under way.
"""
