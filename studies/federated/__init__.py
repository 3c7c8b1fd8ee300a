"""What model clients of different size get for their bytes and operations, scheme by scheme."""
