"""Mortality: how a golem feels and how much life it has left."""
