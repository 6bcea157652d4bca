"""The native transport: calls, in frames over connections or in memory, and the messages of
`proto/`.

Nodes and Python clients both speak it. Nothing here knows what a message means.
"""
