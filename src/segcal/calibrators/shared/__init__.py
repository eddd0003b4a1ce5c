"""What several calibrators use."""
