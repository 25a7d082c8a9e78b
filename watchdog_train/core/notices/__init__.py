"""What a poll shows that needs an event or a notice, but no action."""
