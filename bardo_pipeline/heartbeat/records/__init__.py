"""Records: builds DecisionCycleRecords from the columns of a chunk of ticks."""
