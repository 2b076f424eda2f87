"""Sensors: what starts a job by itself."""
