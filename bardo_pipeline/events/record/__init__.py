"""The DecisionCycleRecord: model, Arrow schema, JSON, validation and upcasting."""
