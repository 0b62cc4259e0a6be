"""Parts that several algorithms share; they do not depend on any algorithm."""
