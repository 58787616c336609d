"""Measurements, run on request: make bench."""
