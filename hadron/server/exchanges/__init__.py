"""What a leader serves of exchanges: clients that attend, what is published, how they are doing."""
