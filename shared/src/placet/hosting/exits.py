"""Decides what the exit code of a service says, after sysexits.h where it has a word for it."""

from __future__ import annotations

OK = 0
"""Drained and ended, as it was asked to."""
UNCLEAN = 1
"""Ended as it was asked to, but something could not be closed; the log says what."""
UNAVAILABLE = 69
"""A server could not be reached in time at the start. Starting again may help."""
DEFECT = 70
"""A loop ended that should have run: a defect, or rows that contradict. The log has it."""
WRONG = 78
"""Something is set, installed or declared wrongly. Starting again does not help."""
SIGNALLED = 128
"""With the number of the signal: a second one asked to end at once."""
