"""Schedules: owns Run, the plan, its task graph, its gates and its status."""
