"""What a leader serves of consumer groups: subscriptions, what is known of them, changes."""
