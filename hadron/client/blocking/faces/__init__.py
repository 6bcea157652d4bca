"""What users of the blocking client call, made by `make faces`."""
