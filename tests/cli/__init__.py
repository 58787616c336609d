"""Tests of the command line: what it prints, what it sends, and with which code it exits."""
