"""The learned gate: expert signals, their weights, sampled boundaries, and the later judgement of each tick's tier."""
