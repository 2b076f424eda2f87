"""Sensors: one file a cause that requests a job."""
