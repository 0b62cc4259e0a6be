"""The step loop of a fit, with its checkpoints, events and stop rules."""
