"""Sensors: each requests a job for one cause."""
