"""Records: the columns of a stepped chunk as DecisionCycleRecords."""
