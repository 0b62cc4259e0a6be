"""The loop, written once: checkpoints, events, stop rules."""
