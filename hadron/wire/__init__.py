"""The native transport: frames, calls over connections, and the messages of `proto/`.

Nodes and Python clients both speak it. Nothing here knows what a message means.
"""
