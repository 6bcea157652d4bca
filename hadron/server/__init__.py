"""Request handlers, one module per proto service: wire messages in, the leader's parts at work.

Handlers run in the reading task of a connection. What can be answered at once is; what has to
wait either leaves a callback behind (producing) or becomes a task of the connection.
"""
