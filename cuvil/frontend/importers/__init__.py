"""From models of other frameworks to the tensor IR."""
