"""Gateway: sends one question to a language model of any provider and returns its reply or its failure."""
