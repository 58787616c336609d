"""Tests of services as processes: settings, logs, signals, and what they are made of."""
