"""Intake: the spool folder, its JSON and Arrow readers, and the quarantine of refused records."""
