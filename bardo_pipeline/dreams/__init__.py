"""Dreams: replay, counterfactuals and hypotheses of an idle golem."""
