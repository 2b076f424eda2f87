"""Runs golems in real time: the clock of their market, their heartbeat, and the driver of their ticks."""
