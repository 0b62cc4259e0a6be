"""Models: predict, score, save and load, of every kind."""
