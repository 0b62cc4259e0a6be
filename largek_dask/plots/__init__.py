"""What a fit has told, for people: plots, cards, pages, words."""
