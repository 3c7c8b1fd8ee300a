"""One figure a file, and the errata of the paper with their counterexamples."""
