"""The paper's neural figures: ten nodes train one network sparsely, and the original dropout beside it."""
