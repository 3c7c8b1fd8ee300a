"""Following a model on an example: which entries of which tensors belong to one unit."""
