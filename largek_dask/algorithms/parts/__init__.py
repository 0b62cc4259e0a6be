"""What several algorithms are made of; a part knows no algorithm."""
