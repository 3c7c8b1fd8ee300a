"""The paper's figures and the studies beyond it: one file or folder per experiment."""
