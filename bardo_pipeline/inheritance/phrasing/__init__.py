"""Testament phrasing: what a language model may reword, and the check of its answer."""
