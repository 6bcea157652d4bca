"""Remote calls on a leader, which connects callers to servers: a pure machine and its driver.

Nothing here is kept: who is attached and what is under way lives in the leader's memory.
"""
