"""Dreams: the replay of recorded cycles, hypotheses and confirmed lessons."""
