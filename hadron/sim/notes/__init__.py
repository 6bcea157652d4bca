"""What befalls a world, noted into a history from outside.

nodes     crashes, stops, what nodes find out about their tables
groups    what leaders give to members, and hear from them
wrapping  listening at functions of the product, for the length of a block
"""
