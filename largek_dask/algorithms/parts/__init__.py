"""Parts that several algorithms share; a part knows no algorithm."""
