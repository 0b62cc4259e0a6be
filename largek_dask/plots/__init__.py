"""Charts, reports and texts of a fit."""
