"""Thinks: asks a model for a plan and for an agent's next turn. Owns Thread, one agent's conversation."""
