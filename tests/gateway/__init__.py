"""Tests of the gateway: what it asks of the machines, what it shows, what it refuses."""
