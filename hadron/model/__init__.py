"""The words that every room shares: ids, records and batches, commands, errors, limits, ports.

Pure: nothing here imports trio, apsw, grpc, time or random.
"""
