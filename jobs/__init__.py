"""Jobs and their schedules."""
