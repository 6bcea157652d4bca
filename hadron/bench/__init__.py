"""`hadron bench`: measures a cluster of its own, with the client that users have.

Absolute figures of a shared machine mean little; compare runs made side by side.
"""
