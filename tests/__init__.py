"""Tests of the whole workspace. Each is named as the sentence it proves."""
