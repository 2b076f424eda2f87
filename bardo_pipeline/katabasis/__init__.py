"""Katabasis: knowledge shared between golems (scars, bloodstains, votes) and the consensus counted from it."""
