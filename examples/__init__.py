"""Applications to start from."""
