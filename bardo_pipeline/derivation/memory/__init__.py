"""Memory: episodes, their vectors, and the questions that they answer."""
