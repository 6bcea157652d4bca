"""Publishing on exchanges, and subscribing to them."""
