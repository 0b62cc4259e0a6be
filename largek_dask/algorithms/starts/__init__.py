"""Initial centres, and the weighted samples from which some are drawn."""
