"""The paper's figures: one file or folder per experiment."""
