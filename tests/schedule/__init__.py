"""Schedules: passes, memory plans, costs, and the reference executor."""
