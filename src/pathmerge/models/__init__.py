"""Transformers that search: the paper's one-hot model, a rotary decoder, one token per edge."""
