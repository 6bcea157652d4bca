"""The process around a replica set's member: configuration, composition root, lifecycle."""
