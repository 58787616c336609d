"""Decides who may decide and what was decided: owns Approval."""
