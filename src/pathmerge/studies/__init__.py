"""Studies: the paper's results by name, each a list of trainings and what is measured of them."""
