"""Studies: what the pages of docs/studies measure. They need a checkout, and are not part of the package."""
