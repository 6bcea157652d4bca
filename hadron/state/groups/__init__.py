"""Consumer groups: what they have acknowledged, what was delivered in vain, how else it ended."""
