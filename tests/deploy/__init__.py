"""Tests of what is deployed: the compose file, its secrets, its settings."""
