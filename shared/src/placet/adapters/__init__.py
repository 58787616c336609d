"""The world behind the ports: one foreign library each."""
