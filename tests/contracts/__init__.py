"""The promises of each port, written once, and held by every adapter of it."""
