"""Tests of the ready-made ledgers that make a tool's effect happen once."""
