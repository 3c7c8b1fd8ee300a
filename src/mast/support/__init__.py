"""What every room uses and no user imports: checks, files, checkpoints, kept results, progress, Philox."""
