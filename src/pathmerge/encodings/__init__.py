"""Problem to model input and back, without loss: symbolic tokens, one token per edge, language."""
