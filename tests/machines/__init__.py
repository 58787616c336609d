"""The machines, Given / When / Then: no I/O, no clock, no sleep."""
