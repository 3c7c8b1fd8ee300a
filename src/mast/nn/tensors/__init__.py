"""What a draw does to the tensors of a model, and nothing above that."""
