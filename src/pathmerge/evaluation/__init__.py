"""How good a model is: accuracy by distribution and difficulty, beside the simple rules that need no search."""
