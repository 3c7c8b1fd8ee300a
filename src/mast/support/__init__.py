"""What every room uses and no user imports: checks of input, files, checkpoints, kept results, progress."""
