"""The heartbeat in real time: its states, its clocks, and the ticks that wait. Pure."""
