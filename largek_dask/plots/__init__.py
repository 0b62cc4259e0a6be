"""Charts, cards, reports and texts of a fit."""
