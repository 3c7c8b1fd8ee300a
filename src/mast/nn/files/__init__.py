"""Networks in files: sparse deltas to one base, submodels for the user's class, the state of a run."""
