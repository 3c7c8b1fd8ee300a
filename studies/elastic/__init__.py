"""A pretrained network in every size, from one short run: `python -m studies.elastic`."""
