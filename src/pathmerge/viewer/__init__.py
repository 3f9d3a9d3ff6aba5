"""Reports: one self-contained HTML page for a study, a run or the demonstration."""
