"""Gateway: the one way to a language model, whichever provider it has; whatever comes back is told as it came."""
