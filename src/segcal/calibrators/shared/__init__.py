"""Parts that several calibrators use."""
