"""Circuits: which algorithm a trained model runs on one input (the paper's section 4; docs/circuits.md)."""
