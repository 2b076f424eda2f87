"""The event stream: the catalogue of event kinds and their payloads."""
