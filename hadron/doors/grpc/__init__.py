"""gRPC: the methods of proto/ under their own names, and records for programs in any language.

A node imports this only when its configuration says `grpc:`. The rules are in docs/GRPC.md.
"""
