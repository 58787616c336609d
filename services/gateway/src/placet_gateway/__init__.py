"""The door for people and programs: HTTP in, messages and facts out. Owns nothing."""
