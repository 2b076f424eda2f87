"""Memory commands: ask, search, grimoire, dreams, scars and conversations."""
