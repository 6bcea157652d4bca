"""What one leadership serves all features with: the schema, what is visible of streams, the door;
and what it does by itself: retention, dropping what was deleted, digests."""
