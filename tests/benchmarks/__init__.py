"""Tables and figures in the documents are those of the committed results."""
